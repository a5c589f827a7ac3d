"""Strategy `subprocess`: fresh interpreters that know nothing of the program but the job itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar, cast

from boxwright.core.world import World
from boxwright.launchers.base import WorkerSpec
from boxwright.launchers.group import Patience, run_local
from boxwright.launchers.payload import pack
from boxwright.launchers.restart import Restart

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubprocessLauncher:
    """Runs a job in processes that do not import the program: for notebooks, consoles and scripts of any shape.

    Attributes:
        restart: how often all workers start again after one died.
        patience: how long workers may take to end when they are stopped.
    """

    name: ClassVar[str] = "subprocess"

    restart: Restart = field(default_factory=Restart)
    patience: Patience = field(default_factory=Patience)

    def notes(self, workers: int) -> list[str]:  # noqa: ARG002  the same for any number
        """Return what a plan should say about restarts."""
        return self.restart.notes()

    def run(self, job: Callable[[World], T], workers: Sequence[WorkerSpec]) -> T:
        """Call `job` in every worker with its world, and return the first worker's result.

        Functions and classes of `__main__` are sent as code.

        Raises:
            UsageError: the workers contradict each other, or the job can't be sent to them.
            WorkerFailed: a worker failed; all are stopped.

        Example:
            >>> SubprocessLauncher().run(lambda world: world.world_size, [WorkerSpec()])
            1
        """
        data = pack(job, "The job")
        result = run_local(data, workers, main_module=None, restart=self.restart, patience=self.patience)
        return cast(T, result)
