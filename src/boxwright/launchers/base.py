"""The seam: what a launcher is, what it is told about each worker, and how it says that one of them failed."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from boxwright.core.errors import UsageError, WorkerError
from boxwright.core.world import World

T = TypeVar("T")

Kind = Literal["exception", "death", "communication"]
"""`exception`: the job raised. `death`: the process ended without a word. `communication`: it lost the others."""

ATTEMPT = "BOXWRIGHT_ATTEMPT"
"""The variable that counts, from 0, how often this group of workers was started."""
RENDEZVOUS = "BOXWRIGHT_RENDEZVOUS"
"""The variable by which a worker of ours is known: where the first worker listens."""
IMPORTING_MAIN = "BOXWRIGHT_IMPORTING_MAIN"
"""The variable that is set while a worker imports the program's main module."""

_THREADS = "OMP_NUM_THREADS"


class WorkerFailed(WorkerError):
    """One worker failed, and all of them were stopped; the message carries its rank and traceback.

    What the worker raised is the `__cause__`, where it can be pickled.

    Attributes:
        rank: the worker that failed first.
        kind: how it failed.
        exit_code: what the command line ends with: that of a `BoxwrightError` in the worker, otherwise 1.
        status: how its process ended: the exit status, or minus the signal's number; None if it is not known.
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
    """What a launcher needs to know about one worker before it starts.

    Attributes:
        rank: this worker among all, from 0.
        world_size: how many workers there are.
        local_rank: this worker among those of its machine, from 0.
        local_world_size: how many workers its machine has.
        node_rank: its machine among all machines, from 0.
        cores: the logical cpus it may run on; empty for all that the launching process may use.
        threads: how many computing threads it should use (OMP_NUM_THREADS).
        env: more environment variables, as pairs. They are there before the interpreter starts.
        anywhere: an engine chooses its machine, and there its cores and threads are found; `cores` and `threads` say
            nothing then, nor do the local rank and the node.

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
                "Leave it out; the fields of WorkerSpec say the same."
            )

    def world(self, *, master_port: int, master_addr: str = "127.0.0.1") -> World:
        """Return the worker's world, once it is known where the first worker listens.

        Raises:
            UsageError: the numbers contradict each other.
        """
        return World(
            rank=self.rank,
            world_size=self.world_size,
            local_rank=self.local_rank,
            local_world_size=self.local_world_size,
            node_rank=self.node_rank,
            master_addr=master_addr,
            master_port=master_port,
            cores=self.cores,
        )

    def variables(self, world: World) -> dict[str, str]:
        """Return every environment variable that tells the worker its place, its threads and its `env`."""
        return {**dict(self.env), **world.to_env(), _THREADS: str(self.threads)}


def current_attempt() -> int:
    """Return how often this worker's group was started before; 0 outside a worker.

    A job that is started again looks here whether to go on from its last checkpoint.
    """
    return int(os.environ.get(ATTEMPT, "0"))


class Launcher(Protocol):
    """Runs one function in several processes at once."""

    @property
    def name(self) -> str:
        """What users call it: its name in the catalogue."""
        ...

    def notes(self, workers: int) -> list[str]:
        """Return what a plan of so many workers should say about restarts and the like."""
        ...

    def run(self, job: Callable[[World], T], workers: Sequence[WorkerSpec]) -> T:
        """Call `job` in every worker with its world, and return the first worker's result.

        Raises:
            UsageError: the workers contradict each other, or the job can't be sent to them.
            WorkerFailed: a worker failed; all are stopped.
        """
        ...


def check_one_machine(workers: Sequence[WorkerSpec]) -> None:
    """Refuse workers that are not all the ranks of one world on this machine.

    Raises:
        UsageError: a rank is missing or there twice, or the sizes differ.
    """
    count = len(workers)
    if not count:
        raise UsageError("workers=[] is not possible. Ask for at least 1.")
    told = [(w.rank, w.world_size, w.local_rank, w.local_world_size, w.node_rank) for w in workers]
    if sorted(told) != [(rank, count, rank, count, 0) for rank in range(count)]:
        raise UsageError(
            f"{count} workers on one machine need ranks 0 to {count - 1}, each once and with a world of {count}, "
            f"but (rank, world_size, local_rank, local_world_size, node_rank) are {told!r}. Use make_workers()."
        )
