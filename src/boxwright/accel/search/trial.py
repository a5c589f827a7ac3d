"""One trial: what its function gets, and how it runs in a process of its own."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from boxwright.accel.search.study import WHOLE, Direction, report
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import UsageError
from boxwright.core.world import World
from boxwright.launchers.allocator import read_allocator
from boxwright.launchers.base import Launcher
from boxwright.launchers.placement import ELSEWHERE, make_workers, make_workers_anywhere

LOG = "log.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """Takes what a trial has reached so far; it may be sent to other processes of the trial.

    Attributes:
        journal: the search's file; None if nothing is reported, as by a repeated run.
        may_stop: whether Hyperband may stop the trial.
    """

    journal: Path | None
    direction: Direction
    trial_id: int
    may_stop: bool

    def __call__(self, fraction: float, value: float) -> bool:
        """Note the value after this fraction of the run, and return whether the trial should stop now."""
        percent = int(fraction * WHOLE)
        if self.journal is None or not 0 < percent < WHOLE:
            return False
        return report(self.journal, self.direction, self.trial_id, percent, value) and self.may_stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial.

    Attributes:
        settings: the values to try; empty for the defaults.
        seed: of all that is random in it.
        folder: for its files; it is empty.
        report: call it with the fraction of the run and the value so far; stop if it returns True.
    """

    settings: Mapping[str, Any]
    seed: int
    folder: Path
    report: Reporter


Objective = Callable[[Trial], float]
"""Runs a trial and returns its value. It must be picklable."""


def run_trial(objective: Objective, trial: Trial, launcher: Launcher) -> float:
    """Return the value of a trial that runs in a process of its own; its output goes to `log.txt` in its folder.

    Raises:
        WorkerFailed: the trial failed, or its process died.
    """
    trial.folder.mkdir(parents=True, exist_ok=True)
    one = (make_workers_anywhere(1) if launcher.name in ELSEWHERE else make_workers(read_cpu(), 1))[0]
    worker = replace(one, env=read_allocator().variables)  # as the processes of a training have them
    return launcher.run(partial(_work, objective, trial), [worker])


def _work(objective: Objective, trial: Trial, world: World) -> float:  # noqa: ARG001  a trial has no peers
    if not trial.folder.is_dir():
        raise UsageError(f"{str(trial.folder)!r} is not on this machine. Use a folder that all machines share.")
    with (trial.folder / LOG).open("ab", buffering=0) as log:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    return float(objective(trial))
