"""Strategy `spawn`: fresh interpreters that import the program's main module first, as multiprocessing's do."""

import multiprocessing  # noqa: F401  makes "__mp_main__", as workers call the script, another name of "__main__"
import os
import sys
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
class SpawnLauncher:
    """Runs a job in processes that import the script first (`__name__` is "__mp_main__" there).

    What the script defines is then found by its name, so that workers can start processes of their own with it: data
    workers by "spawn" or "forkserver" need that. The script must start its work under `if __name__ == "__main__":`.
    Where there is no script (a notebook, a console), all is as with `subprocess`.

    Attributes:
        restart: how often all workers start again after one died.
        patience: how long workers may take to end when they are stopped.
    """

    name: ClassVar[str] = "spawn"

    restart: Restart = field(default_factory=Restart)
    patience: Patience = field(default_factory=Patience)

    def notes(self, workers: int) -> list[str]:  # noqa: ARG002  the same for any number
        """Return what a plan should say about restarts."""
        return self.restart.notes()

    def run(self, job: Callable[[World], T], workers: Sequence[WorkerSpec]) -> T:
        """Call `job` in every worker with its world, and return the first worker's result.

        Raises:
            UsageError: the workers contradict each other, or the job can't be sent to them.
            WorkerFailed: a worker failed; all are stopped.

        Example:
            >>> SpawnLauncher().run(lambda world: world.rank, [WorkerSpec()])
            0
        """
        main_module = _find_main()
        data = pack(job, "The job", main_by_name=main_module is not None)
        result = run_local(data, workers, main_module=main_module, restart=self.restart, patience=self.patience)
        return cast(T, result)


def _find_main() -> dict[str, str] | None:
    """Return how `multiprocessing.spawn.prepare` can import the main module; None if it can't be imported."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        # `python -m package` runs package.__main__, which multiprocessing leaves alone as well.
        return None if spec.name.endswith("__main__") else {"init_main_from_name": spec.name}
    path = getattr(main, "__file__", None)
    if not path or not os.path.isfile(path) or "ipython" in os.path.basename(path):
        return None
    return {"init_main_from_path": os.path.abspath(path)}
