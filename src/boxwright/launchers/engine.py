"""The seam to an engine that has machines of its own: what it can do, and the terms of a launch on it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from boxwright.core.errors import UsageError
from boxwright.launchers.base import WorkerSpec, check_one_machine
from boxwright.launchers.group import Patience
from boxwright.launchers.restart import Restart
from boxwright.launchers.wire import Invitation, Listener


class Placement(Protocol):
    """Agents that an engine has been asked to start.

    Attributes:
        count: how many; fewer than asked for where that was allowed.
        cpus: how many logical cpus each has been granted.
    """

    count: int
    cpus: int

    def failure(self) -> str | None:
        """Return the engine's own words when it has lost or could not start an agent."""
        ...

    def close(self) -> None:
        """Leave none of them running."""
        ...


class Engine(Protocol):
    """Something that runs agents on its machines."""

    def listen(self) -> Listener:
        """Return a listener that the engine's machines can reach."""
        ...

    def place(self, invitation: Invitation, count: int, least: int, wait: "Callable[[float], None]") -> Placement:
        """Start `count` agents, or fewer but at least `least` where there is no room.

        Args:
            invitation: what each agent is handed.
            count: how many are wanted.
            least: how many must be there.
            wait: sleeps so many seconds; it ends the launch when the program is interrupted.

        Raises:
            UsageError: there is no room for `least`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a launch on an engine behaves.

    Attributes:
        restart: how often all workers start again after one died or its machine was lost.
        patience: how long workers may take to end when they are stopped.
        min_workers: go on with as few where the engine has no room for all; None for all or nothing.
        start_timeout_s: how long the engine may take to start the agents.
    """

    restart: Restart = field(default_factory=Restart)
    patience: Patience = field(default_factory=Patience)
    min_workers: int | None = None
    start_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if self.start_timeout_s <= 0:
            raise UsageError(f"start_timeout_s={self.start_timeout_s!r} leaves no time to start. Use more than 0.")

    def notes(self, workers: int) -> list[str]:
        """Return what a plan of so many workers should say.

        Raises:
            UsageError: `min_workers` does not fit them.
        """
        least = self.min_workers
        if least is not None and not 1 <= least <= workers:
            raise UsageError(f"min_workers={least!r} does not fit {workers} workers. Use 1 to {workers}.")
        fewer = f"where there is no room for {workers} processes, {least} will do; numbers change a little then"
        return [*self.restart.notes(), *([fewer] if least is not None and least < workers else [])]


def check_workers(workers: Sequence[WorkerSpec], terms: Terms) -> None:
    """Refuse workers that are not all the ranks of one world, or that the terms don't fit.

    Raises:
        UsageError: they are not, or don't.
    """
    check_one_machine(workers)  # the engine's machines are found later: here they are still one
    terms.notes(len(workers))
