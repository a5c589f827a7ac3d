"""Running a program of the user's own with settings that fit the machine."""

from collections.abc import Sequence

from boxwright.core.cpu import read_cpu
from boxwright.launchers.allocator import keep_freed_memory
from boxwright.launchers.program import ProgramSettings, become, check_command, choose_settings

__all__ = ["become", "keep_freed_memory", "prepare"]


def prepare(command: Sequence[str], *, threads: int | None = None) -> ProgramSettings:
    """Return what a program would be given on this machine.

    Raises:
        UsageError: there is no such program, or there are too many threads.
    """
    check_command(command)
    return choose_settings(read_cpu(), threads)
