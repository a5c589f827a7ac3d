"""The interface to an engine such as Ray or Spark: what it must do, and what its launchers share."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger
from boxwright.launchers.base import WorkerSpec, check_one_machine
from boxwright.launchers.files import check_files
from boxwright.launchers.payload import pack
from boxwright.launchers.restart import Restart
from boxwright.launchers.supervisor import Patience
from boxwright.launchers.wire import Invitation, Listener

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Agents that an engine has been asked to start.

    Attributes:
        count: how many; fewer than asked for where that was allowed.
        cpus: how many logical cpus the engine grants each.
        failure: returns the engine's own message once it has lost or could not start an agent.
    """

    count: int
    cpus: int
    failure: Callable[[], str | None]


class Engine(Protocol):
    """Starts agents on its machines."""

    def listen(self) -> Listener:
        """Return a listener that the engine's machines can reach."""
        ...

    def place(
        self, invitation: Invitation, count: int, least: int, wait: Callable[[float], None]
    ) -> AbstractContextManager[Placement]:
        """Start `count` agents, or at least `least` where there is no room; leave none running afterwards.

        `wait` sleeps for some seconds, and raises when the program is interrupted.

        Raises:
            UsageError: there is no room for `least`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLauncher:
    """The settings that launchers on an engine share.

    Attributes:
        cores_per_worker: the engine's CPUs for each worker; None for an even share of all.
        min_workers: run with as few where the engine has no room for all; None for all or nothing.
        files: sent to every machine; a worker asks `carried_file` where they are.
        restart: how often to restart all workers after one has died or its machine was lost.
        patience: how long workers may take to end when they are stopped.
        room_timeout_s: how long to wait for room for all before running with fewer.
        start_timeout_s: how long the engine may take to find room and start the agents.
    """

    cores_per_worker: int | None = None
    min_workers: int | None = None
    files: tuple[Path, ...] = ()
    restart: Restart = field(default_factory=Restart)
    patience: Patience = field(default_factory=Patience)
    room_timeout_s: float = 10.0
    start_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if self.cores_per_worker is not None and self.cores_per_worker < 1:
            raise UsageError(f"cores_per_worker={self.cores_per_worker!r} is not possible. Use 1 or more, or None.")
        if self.start_timeout_s <= 0:
            raise UsageError(f"start_timeout_s={self.start_timeout_s!r} leaves no time to start. Use more than 0.")

    def notes(self, workers: int) -> list[str]:
        """Return what a plan of this many workers should say.

        Raises:
            UsageError: `min_workers` does not fit them.
        """
        least = self.min_workers
        if least is not None and not 1 <= least <= workers:
            raise UsageError(f"min_workers={least!r} does not fit {workers} workers. Use 1 to {workers}.")
        fewer = f"without room for {workers} processes, {least} are enough; results then differ a little"
        return [*self.restart.notes(), *([fewer] if least is not None and least < workers else [])]

    def wait_for_all_s(self, count: int, least: int) -> float:
        """Return how long to wait for room for all `count` workers, of which `least` are enough."""
        return self.start_timeout_s if least == count else min(self.room_timeout_s, self.start_timeout_s)

    def pack_job(self, job: Callable[..., Any], workers: Sequence[WorkerSpec]) -> bytes:
        """Return the packed job.

        Raises:
            UsageError: the workers contradict each other, the job can't be sent, or a file is missing.
        """
        check_one_machine(workers)  # the engine chooses the machines later: until then there is one
        self.notes(len(workers))
        if size := check_files(self.files):
            _log.info("Sending %.1f MB to each machine.", size / 1e6)
        return pack(job, "The job")
