"""`World`: this worker's place among all workers."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from boxwright.core.errors import UsageError

# The variables of each field; the first one that is set counts.
_TORCH = {
    "rank": ("RANK",),
    "world_size": ("WORLD_SIZE",),
    "local_rank": ("LOCAL_RANK",),
    "local_world_size": ("LOCAL_WORLD_SIZE",),
    "node_rank": ("GROUP_RANK", "NODE_RANK"),
}
_SLURM = {
    "rank": ("SLURM_PROCID",),
    "world_size": ("SLURM_NTASKS",),
    "local_rank": ("SLURM_LOCALID",),
    "local_world_size": ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
    "node_rank": ("SLURM_NODEID",),
}
RENDEZVOUS = "BOXWRIGHT_RENDEZVOUS"
"""The variable that marks our own workers; its value is where the first one listens."""

_CORES = "BOXWRIGHT_CORES"
_STORE = "BOXWRIGHT_STORE"
_POD = "KUBERNETES_SERVICE_HOST"  # Kubernetes sets it in every pod


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One worker's place among all workers.

    Attributes:
        rank: this worker among all, from 0.
        world_size: how many workers there are.
        local_rank: this worker among those of its machine, from 0.
        local_world_size: how many workers its machine has.
        node_rank: its machine among all machines, from 0.
        master_addr: where the first worker listens.
        master_port: the port it listens on.
        cores: the processor cores of this worker; empty when it may use all.
        store: the private file through which workers of one machine find each other, so that none has to listen on
            a port; empty where they use `master_addr`.

    Example:
        >>> World.from_env({"RANK": "1", "WORLD_SIZE": "2"}).is_first
        False
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29500
    cores: tuple[int, ...] = ()
    store: str = ""

    def __post_init__(self) -> None:
        names = [name for name in self.__slots__ if name not in ("master_addr", "cores", "store")]
        _check({name: getattr(self, name) for name in names}, {name: name for name in names})

    @property
    def is_first(self) -> bool:
        """Whether this worker logs, saves and reports."""
        return self.rank == 0

    @classmethod
    def single(cls, *, cores: tuple[int, ...] = ()) -> "World":
        """Return the world of a single process."""
        return cls(cores=cores)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "World":
        """Return the world that a launcher described in environment variables; without any, a single process.

        Reads RANK, WORLD_SIZE and the like, or else those of a Slurm job step. Missing ones default to one machine.
        In a Kubernetes pod they default to one worker per machine, because a PyTorchJob starts one worker in each pod
        and sets only RANK and WORLD_SIZE. Several workers in a pod need LOCAL_WORLD_SIZE.

        Raises:
            UsageError: a variable is not a number, is missing or contradicts another.
        """
        cores = tuple(_number(_CORES, core) for core in env.get(_CORES, "").split(",") if core)
        options = _find_variables(env)
        if options is None:
            return cls.single(cores=cores)
        names = {field: next((v for v in some if v in env), some[0]) for field, some in options.items()}

        def read(field: str, default: int | None, *, least: int = 0) -> int:
            variable = names[field]
            if variable in env:
                return _number(variable, env[variable], least=least)
            if default is None:
                others = ", ".join(f"{name}={env[name]!r}" for name in names.values() if name in env)
                raise UsageError(f"{variable} is not set, but {others}. Set {variable}, or none of them.")
            return default

        size = read("world_size", None, least=1)
        rank = read("rank", 0 if size == 1 else None)
        if options is _SLURM:
            node_rank = read("node_rank", 0)
            local_size = _slurm_tasks(env.get(names["local_world_size"], ""), node_rank) or size
        else:
            alone_in_pod = _POD in env and "LOCAL_RANK" not in env
            local_size = read("local_world_size", 1 if alone_in_pod else size, least=1)
            node_rank = read("node_rank", rank // local_size)
        values = {
            "rank": rank,
            "world_size": size,
            "local_rank": read("local_rank", rank % local_size),
            "local_world_size": local_size,
            "node_rank": node_rank,
            "master_port": _number("MASTER_PORT", env.get("MASTER_PORT", "29500")),
        }
        _check(values, {**names, "master_port": "MASTER_PORT"})
        if not env.get("MASTER_ADDR") and local_size < size:
            raise UsageError(
                f"{size} workers on several machines need MASTER_ADDR, which is not set. "
                "Set it to the address of the first worker's machine."
            )
        # A launcher that was started inside one of our workers has changed the port; that store is not its own.
        port, _, store = env.get(_STORE, "").partition(":")
        return cls(
            **values,
            master_addr=env.get("MASTER_ADDR") or "127.0.0.1",
            cores=cores,
            store=store if port == str(values["master_port"]) else "",
        )

    def to_env(self) -> dict[str, str]:
        """Return the variables from which `from_env` makes an equal world."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self.node_rank),
            "NODE_RANK": str(self.node_rank),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
            _CORES: ",".join(str(core) for core in self.cores),
            _STORE: f"{self.master_port}:{self.store}" if self.store else "",
        }


def current() -> World:
    """Return this process's world, from its environment."""
    return World.from_env(os.environ)


def _find_variables(env: Mapping[str, str]) -> dict[str, tuple[str, ...]] | None:
    if "RANK" in env or "WORLD_SIZE" in env:
        return _TORCH
    # A batch script outside `srun` also has SLURM_PROCID=0 and SLURM_NTASKS, but no step: it is a single process, and
    # would wait forever for the other tasks.
    outside_step = "SLURM_JOB_ID" in env and "SLURM_STEP_ID" not in env
    return _SLURM if "SLURM_PROCID" in env and not outside_step else None


def _slurm_tasks(text: str, node_rank: int) -> int | None:
    """Return the tasks of one machine from Slurm's short form, such as "4(x2),1" for 4, 4 and 1."""
    tasks: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        tasks += [int(count)] * int(times or 1)
    return tasks[node_rank] if node_rank < len(tasks) else None


def _number(variable: str, text: str, *, least: int = 0) -> int:
    if not re.fullmatch(r"\s*[0-9]+\s*", text) or int(text) < least:
        raise UsageError(f"{variable}={text!r} can't be used: it must be a whole number, {least} or more.")
    return int(text)


def _check(values: Mapping[str, int], names: Mapping[str, str]) -> None:
    """Reject numbers that contradict each other, under the names that the user knows."""

    def require(holds: bool, first: str, second: str, why: str) -> None:
        if not holds:
            pair = f"{names[first]}={values[first]!r} does not fit {names[second]}={values[second]!r}"
            raise UsageError(f"{pair}: {why}. Check how the workers were started.")

    for rank, size in (("rank", "world_size"), ("local_rank", "local_world_size")):
        require(0 <= values[rank] < values[size], rank, size, f"{names[rank]} counts from 0 and stays below the size")
    local_size, others = values["local_world_size"], values["world_size"] - values["local_world_size"]
    require(others >= 0, "local_world_size", "world_size", "one machine can't have more workers than all together")
    require(values["local_rank"] <= values["rank"], "local_rank", "rank", "it can't be the larger one")
    why = f"{local_size} of {values['world_size']} workers are on this machine, so there aren't that many machines"
    require(0 <= values["node_rank"] <= others, "node_rank", "local_world_size", why)
    if not 1 <= values["master_port"] <= 65535:
        raise UsageError(f"{names['master_port']}={values['master_port']!r} is not a port. Use 1 to 65535.")
