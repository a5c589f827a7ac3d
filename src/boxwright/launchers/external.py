"""Workers that somebody else has started: torchrun, Slurm, a Kubernetes PyTorchJob. Nothing is started here."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from boxwright.core.cpu import Cpu, split_cores
from boxwright.core.errors import UsageError
from boxwright.core.world import World
from boxwright.launchers.base import RENDEZVOUS, WorkerSpec

T = TypeVar("T")


def from_environment(env: Mapping[str, str] | None = None) -> World | None:
    """Return the world in which another launcher has started this process; None if none has, or it was one of ours.

    Args:
        env: the variables to read; those of this process by default.

    Raises:
        UsageError: a variable is no number, is missing or contradicts another.

    Example:
        >>> from_environment({"RANK": "1", "WORLD_SIZE": "2"}).rank
        1
    """
    env = os.environ if env is None else env
    world = World.from_env(env)
    # A launcher that was started inside one of our workers has changed the port.
    if env.get(RENDEZVOUS) == f"{world.master_addr}:{world.master_port}":
        return None
    return world if "RANK" in env or "WORLD_SIZE" in env or world.world_size > 1 else None


def find_own_worker(
    world: World, cpu: Cpu, *, threads: int | None = None, env: Mapping[str, str] | None = None
) -> WorkerSpec:
    """Return this process as a worker of a world that somebody else has made.

    Cores are split only where LOCAL_RANK and LOCAL_WORLD_SIZE say how many share the machine, as torchrun does, which
    leaves the mask alone. Slurm has cut it already, and a pod of a PyTorchJob is a machine of its own: such a worker
    takes what the mask allows.

    Args:
        world: what `from_environment` found.
        cpu: this machine.
        threads: computing threads; by default one for each physical core.
        env: the variables to read; those of this process by default.

    Raises:
        UsageError: the machine has fewer cores than workers.
    """
    env = os.environ if env is None else env
    shared = "LOCAL_RANK" in env and "LOCAL_WORLD_SIZE" in env
    sharers = world.local_world_size if shared else 1
    share = split_cores(cpu.cores, sharers)[world.local_rank if shared else 0]
    return WorkerSpec(
        rank=world.rank,
        world_size=world.world_size,
        local_rank=world.local_rank,
        local_world_size=world.local_world_size,
        node_rank=world.node_rank,
        cores=tuple(sorted(one for core in share for one in core.cpus)),
        threads=max(1, min(len(share), cpu.usable_cores // sharers)) if threads is None else threads,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalLauncher:
    """Runs a job in this very process, which is one worker of a world that somebody else has made."""

    name: ClassVar[str] = "external"

    def notes(self, workers: int) -> list[str]:  # noqa: ARG002  the same for any number
        """Return nothing: restarts are up to who started the processes."""
        return []

    def run(self, job: Callable[[World], T], workers: Sequence[WorkerSpec]) -> T:
        """Call `job` with this process's world on its worker's cores, and return this worker's own result.

        The mask and the variables are put back afterwards.

        Args:
            job: what to call.
            workers: this process's worker, and perhaps others of its world.

        Raises:
            UsageError: nobody has started this process as a worker, or its worker is not among `workers`.
        """
        world = from_environment()
        if world is None:
            raise UsageError(
                "No launcher has started this process: RANK and WORLD_SIZE are not set. "
                "Start it with torchrun or srun, or use strategy 'subprocess'."
            )
        sizes = {worker.world_size for worker in workers}
        own = next((worker for worker in workers if worker.rank == world.rank), None)
        if own is None or sizes != {world.world_size}:
            raise UsageError(
                f"This process was started as worker {world.rank} of {world.world_size}, but the plan has workers "
                f"{sorted(worker.rank for worker in workers)!r} of {sorted(sizes)!r}. "
                "Leave the number of processes to the launcher that started it."
            )
        with _on_its_cores(own, world):
            return job(replace(world, cores=own.cores))


@contextmanager
def _on_its_cores(worker: WorkerSpec, world: World) -> Iterator[None]:
    before, mask = dict(os.environ), os.sched_getaffinity(0)
    try:
        os.environ.update(worker.variables(replace(world, cores=worker.cores)))
        if worker.cores:
            os.sched_setaffinity(0, worker.cores)
        yield
    finally:
        os.sched_setaffinity(0, mask)
        for name in worker.variables(world):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]
