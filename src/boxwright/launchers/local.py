"""Strategies `subprocess` and `spawn`: fresh interpreters on this machine."""

import multiprocessing  # noqa: F401  makes "__mp_main__", as workers call the script, another name of "__main__"
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from boxwright.core.errors import UsageError
from boxwright.core.world import World
from boxwright.launchers.base import IMPORTING_MAIN, WorkerSpec, check_one_machine
from boxwright.launchers.folder import launch_folder
from boxwright.launchers.interrupts import Interrupts, run_interruptible
from boxwright.launchers.network import find_free_port, use_loopback
from boxwright.launchers.output import make_relays
from boxwright.launchers.payload import pack
from boxwright.launchers.process import WorkerProcess, write_start
from boxwright.launchers.restart import Restart
from boxwright.launchers.supervisor import Patience, supervise

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubprocessLauncher:
    """Runs a job in processes that do not import the program: for notebooks, consoles and any script.

    Functions and classes of `__main__` are sent as code.

    Attributes:
        restart: how often to restart all workers after one has died.
        patience: how long workers may take to end when they are stopped.

    Example:
        >>> SubprocessLauncher().run(lambda world: world.world_size, [WorkerSpec()])
        1
    """

    name: ClassVar[str] = "subprocess"

    restart: Restart = field(default_factory=Restart)
    patience: Patience = field(default_factory=Patience)

    def notes(self, workers: int) -> list[str]:  # noqa: ARG002  the same for any number
        """Return what a plan should say about restarts."""
        return self.restart.notes()

    def run(self, job: Callable[[World], T], workers: Sequence[WorkerSpec]) -> T:
        """Call `job` in every worker with its world, and return the first worker's result.

        Raises:
            UsageError: the workers contradict each other, the job can't be sent to them, or the program starts workers
                whenever it is imported.
            WorkerFailed: a worker failed; all are stopped.
        """
        if IMPORTING_MAIN in os.environ:
            raise UsageError(
                "The program starts workers as soon as it is imported, and each worker imports it. Put the start under "
                "`if __name__ == '__main__':`, or use strategy 'subprocess', which does not import the program."
            )
        check_one_machine(workers)
        if any(worker.anywhere for worker in workers):
            raise UsageError("anywhere=True is for Ray and Spark. Give each worker cores and threads: make_workers().")
        main_module = self._find_main()
        data = pack(job, "The job", main_by_name=main_module is not None)

        def run(interrupts: Interrupts) -> Any:
            with launch_folder() as folder:
                write_start(folder, data, main_module)
                return self.restart.run(lambda attempt: self._run_once(folder, attempt, workers, interrupts))

        return cast(T, run_interruptible(run))

    def _find_main(self) -> dict[str, str] | None:
        """Return how workers import the program's main module; None if they don't."""
        return None

    def _run_once(self, folder: Path, attempt: int, workers: Sequence[WorkerSpec], interrupts: Interrupts) -> Any:
        port = find_free_port()  # a new one each time: the last attempt's connections may still be open
        store = str(folder / f"store-{attempt}")  # only this user can open files of the folder
        started: list[WorkerProcess] = []
        try:
            for spec in workers:
                forward = make_relays(spec.rank, len(workers))
                started.append(
                    WorkerProcess(use_loopback(spec), folder, forward, attempt=attempt, master_port=port, store=store)
                )
            return supervise(started, interrupts, self.patience)
        finally:
            for process in started:
                process.kill()
            for process in started:
                process.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnLauncher(SubprocessLauncher):
    """Runs a job in processes that import the script first (`__name__` is "__mp_main__" there).

    Workers then find what the script defines by its name, and can start their own processes with it, as data
    workers by "spawn" or "forkserver" require. The script must start its work under `if __name__ == "__main__":`.
    Without a script (a notebook, a console) it does the same as `SubprocessLauncher`.

    Example:
        >>> SpawnLauncher().run(lambda world: world.rank, [WorkerSpec()])
        0
    """

    name: ClassVar[str] = "spawn"

    def _find_main(self) -> dict[str, str] | None:
        """Return how `multiprocessing.spawn.prepare` imports the main module; None if it can't be imported."""
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        if spec is not None:
            # `python -m package` runs package.__main__, which multiprocessing does not import either.
            return None if spec.name.endswith("__main__") else {"init_main_from_name": spec.name}
        path = getattr(main, "__file__", None)
        if not path or not os.path.isfile(path) or "ipython" in os.path.basename(path):
            return None
        return {"init_main_from_path": os.path.abspath(path)}
