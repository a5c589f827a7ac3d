"""Run a user's own program with settings that fit the machine."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from boxwright.core.cpu import Cpu, read_cpu
from boxwright.core.errors import UsageError
from boxwright.core.packages import require
from boxwright.core.procfs import format_cpu_list
from boxwright.launchers.allocator import VARIABLES, keep_freed_memory

__all__ = ["ProgramSettings", "become", "choose_settings", "keep_freed_memory", "prepare"]

_OMP = "OMP_NUM_THREADS"
_AT_START = Path(__file__).parents[1] / "devices" / "at_start"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSettings:
    """A program's environment variables and cpus, with the reasons."""

    variables: tuple[tuple[str, str], ...]
    cpus: tuple[int, ...]
    reasons: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the settings for people."""
        shown = [f"{name}={value}" for name, value in self.variables]
        return [*shown, f"cpus {format_cpu_list(self.cpus)}", *(f"  {reason}" for reason in self.reasons)]

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        return {"variables": dict(self.variables), "cpus": list(self.cpus), "reasons": list(self.reasons)}


def prepare(command: Sequence[str], *, threads: int | None = None, patched: bool = False) -> ProgramSettings:
    """Return the settings of a program on this machine.

    Args:
        command: the program and its arguments.
        threads: how many computing threads; None for one per usable core.
        patched: have `patch_torch` called in the program, and in all Python programs that it starts.

    Raises:
        UsageError: there is no such program, or there are too many threads.
        MissingDependencyError: with `patched`, torch is not installed.
    """
    _find_program(command)
    settings = choose_settings(read_cpu(), threads, os.environ)
    if not patched:
        return settings
    require("torch", extra="train", by="patch_torch")
    path = os.pathsep.join(filter(None, [str(_AT_START), os.environ.get("PYTHONPATH")]))
    return replace(
        settings,
        variables=(*settings.variables, ("PYTHONPATH", path)),
        reasons=(*settings.reasons, "patch_torch runs in Python programs, once they have imported torch"),
    )


def choose_settings(
    cpu: Cpu, threads: int | None = None, env: Mapping[str, str] = MappingProxyType({})
) -> ProgramSettings:
    """Return settings for one program that has the machine to itself.

    It gets one thread per physical core: hyper-threads share their units, and a second one slows numeric code down.
    OMP_NUM_THREADS of the user counts for every library. Variables that the user has set keep their values, except
    those of threads that were asked for.

    Raises:
        UsageError: there are more threads than cpus that may be used.
    """
    if threads is not None and threads > len(cpu.allowed):
        raise UsageError(f"threads={threads!r}, but this process may use {len(cpu.allowed)} cpus.")
    own = re.match(r"\s*([1-9]\d*)", env.get(_OMP, "")) if threads is None else None  # may be a list: "4,2"
    count = threads or (int(own[1]) if own else cpu.usable_cores)
    # Under a quota the cores are not chosen: every container would otherwise use the same first ones.
    cores = cpu.cores[:count] if threads is not None else cpu.cores
    cpus = tuple(sorted(one for core in cores for one in core.cpus))
    why = "as asked" if threads else f"as {_OMP} says" if own else "one for each usable physical core"
    reasons = [f"{count} threads: {why}"]
    if cpu.quota is not None:
        reasons.append(f"the container's quota is {cpu.quota:g} cpus")
    reasons.append("freed memory is kept instead of given back to the system, which saves page faults")
    variables = {_OMP: str(count), "MKL_NUM_THREADS": str(count)}
    if threads is None:
        variables = {name: env.get(name, value) for name, value in variables.items()}
    variables |= {name: env.get(name, value) for name, value in VARIABLES}
    return ProgramSettings(variables=tuple(variables.items()), cpus=cpus, reasons=tuple(reasons))


def become(command: Sequence[str], settings: ProgramSettings) -> NoReturn:
    """Replace this process by the program.

    Raises:
        UsageError: there is no command, or no such program.
    """
    program = _find_program(command)
    os.sched_setaffinity(0, settings.cpus)
    os.execve(program, list(command), {**os.environ, **dict(settings.variables)})


def _find_program(command: Sequence[str]) -> str:
    if not command:
        raise UsageError("There is nothing to run. Use: boxwright run -- python script.py")
    program = shutil.which(command[0])
    if program is None:
        raise UsageError(f"There is no program {command[0]!r}. Check its name and PATH.")
    return program
