"""The launcher interface: what a launcher does, how a worker is described to it, and the error that it raises."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, Protocol, TypeVar

from boxwright.core.errors import UsageError, WorkerError
from boxwright.core.world import World

T = TypeVar("T")

Kind = Literal["exception", "death", "communication"]
"""`exception`: the job raised. `death`: the process ended without a report. `communication`: it lost the others."""

ATTEMPT = "BOXWRIGHT_ATTEMPT"
"""The variable that counts, from 0, how often the workers were started."""
IMPORTING_MAIN = "BOXWRIGHT_IMPORTING_MAIN"
"""The variable that is set while a worker imports the program's main module."""

GUARD = "boxwright-guard"
"""The name in /proc of the process that ends what a worker leaves behind (at most 15 characters)."""

_THREADS = "OMP_NUM_THREADS"


class WorkerFailed(WorkerError):
    """A worker failed, and all of them were stopped; the message has its rank and traceback.

    The worker's exception is the `__cause__`, if it can be pickled.

    Attributes:
        rank: the worker that failed first.
        kind: how it failed.
        exit_code: the command line's exit code: that of a `BoxwrightError` in the worker, otherwise 1.
        status: the exit status of its process, or minus the signal's number; None if it is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int = 0,
        kind: Kind = "exception",
        exit_code: int = 1,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.kind: Kind = kind
        self.exit_code = exit_code
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker, described before it starts.

    Attributes:
        rank, world_size, local_rank, local_world_size, node_rank: its place, as in `World`.
        cores: the logical cpus it may run on; empty for all that the launching process may use.
        threads: how many computing threads it uses (OMP_NUM_THREADS).
        env: more environment variables, as pairs, set before the interpreter starts.
        anywhere: an engine chooses its machine. Cores, threads, local rank and node are decided there.

    Example:
        >>> spec = WorkerSpec(rank=1, local_rank=1, world_size=2, local_world_size=2, cores=(2, 3), threads=2)
        >>> spec.world(master_port=4000).to_env()["BOXWRIGHT_CORES"]
        '2,3'
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    cores: tuple[int, ...] = ()
    threads: int = 1
    env: tuple[tuple[str, str], ...] = ()
    anywhere: bool = False

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise UsageError(f"threads={self.threads!r} is not possible. Use at least 1.")
        taken = sorted({name for name, _ in self.env} & {_THREADS, *World.single().to_env()})
        if taken:
            raise UsageError(
                f"env={dict(self.env)!r} sets {', '.join(taken)}, which the launcher sets itself. "
                "Leave it out; WorkerSpec has a field for it."
            )

    def world(self, *, master_port: int, master_addr: str = "127.0.0.1", store: str = "") -> World:
        """Return the worker's world, given where the first worker listens, or the file that replaces that.

        Raises:
            UsageError: the numbers contradict each other.
        """
        own = {field.name: getattr(self, field.name) for field in fields(World) if hasattr(self, field.name)}
        return World(**own, master_addr=master_addr, master_port=master_port, store=store)

    def variables(self, world: World) -> dict[str, str]:
        """Return the environment variables with the worker's place, its threads and its `env`."""
        return {**dict(self.env), **world.to_env(), _THREADS: str(self.threads)}


def current_attempt() -> int:
    """Return how often the workers were started before this time; 0 outside a worker.

    If it is not 0, a job should resume from its last checkpoint.
    """
    return int(os.environ.get(ATTEMPT, "0"))


class Launcher(Protocol):
    """Runs one function in several processes at once."""

    @property
    def name(self) -> str:
        """Its name in the catalogue."""
        ...

    def notes(self, workers: int) -> list[str]:
        """Return what a plan of this many workers should say about restarts and the like."""
        ...

    def run(self, job: Callable[[World], T], workers: Sequence[WorkerSpec]) -> T:
        """Call `job` in every worker with its world, and return the first worker's result.

        Raises:
            UsageError: the workers contradict each other, or the job can't be sent to them.
            WorkerFailed: a worker failed; all are stopped.
        """
        ...


def check_one_machine(workers: Sequence[WorkerSpec]) -> None:
    """Reject workers that are not all the ranks of one world on this machine.

    Raises:
        UsageError: a rank is missing or given twice, or the sizes differ.
    """
    count = len(workers)
    if not count:
        raise UsageError("workers=[] is not possible. Ask for at least 1.")
    places = [(w.rank, w.world_size, w.local_rank, w.local_world_size, w.node_rank) for w in workers]
    if sorted(places) != [(rank, count, rank, count, 0) for rank in range(count)]:
        raise UsageError(
            f"{count} workers on one machine need ranks 0 to {count - 1}, each once and with a world of {count}, "
            f"but (rank, world_size, local_rank, local_world_size, node_rank) are {places!r}. Use make_workers()."
        )
