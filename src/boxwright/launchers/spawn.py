"""Strategy `spawn`: fresh interpreters that import the program's main module first, as multiprocessing's do."""

import multiprocessing  # noqa: F401  makes "__mp_main__", as workers call the script, another name of "__main__"
import os
import sys
from dataclasses import dataclass
from typing import ClassVar

from boxwright.launchers.local import LocalLauncher


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnLauncher(LocalLauncher):
    """Runs a job in processes that import the script first (`__name__` is "__mp_main__" there).

    Workers then find what the script defines by its name, and can start processes of their own with it, as data
    workers by "spawn" or "forkserver" require. The script must start its work under `if __name__ == "__main__":`.
    Without a script (a notebook, a console) it does the same as `subprocess`.

    Example:
        >>> from boxwright.launchers.base import WorkerSpec
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
