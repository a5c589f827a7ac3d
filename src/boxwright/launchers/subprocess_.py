"""Strategy `subprocess`: fresh interpreters that know nothing of the program but the job itself."""

from dataclasses import dataclass
from typing import ClassVar

from boxwright.launchers.local import LocalLauncher


@dataclass(frozen=True, slots=True, kw_only=True)
class SubprocessLauncher(LocalLauncher):
    """Runs a job in processes that do not import the program: for notebooks, consoles and any script.

    Functions and classes of `__main__` are sent as code.

    Example:
        >>> from boxwright.launchers.base import WorkerSpec
        >>> SubprocessLauncher().run(lambda world: world.world_size, [WorkerSpec()])
        1
    """

    name: ClassVar[str] = "subprocess"
