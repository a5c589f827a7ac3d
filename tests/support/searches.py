"""Small searches, and what their trials do. No torch here: every trial imports this file."""

import os
from pathlib import Path
from typing import Any

from boxwright.accel.search.run import Search
from boxwright.accel.search.trial import Trial
from boxwright.core.spaces import Real


def make_search(folder: Path, **changes: Any) -> Search:
    settings: dict[str, Any] = {
        "folder": folder, "spaces": {"x": Real(-3.0, 3.0)}, "defaults": {"x": 2.0}, "metric": "height",
        "direction": "max", "trials": 4, "repeats": 2,
    }  # fmt: skip
    return Search(**(settings | changes))


def hill(trial: Trial) -> float:
    """A hill at x = 0, with a little noise from the seed."""
    return -(float(trial.settings.get("x", 2.0)) ** 2) + 0.01 * trial.seed


def flat(trial: Trial) -> float:
    """The settings change nothing; only the seed does."""
    return float([0.1, 0.3, 0.2][trial.seed]) + (0.01 if trial.settings and trial.seed == 0 else 0.0)


def slope(trial: Trial) -> float:
    return -float(trial.settings.get("x", 0.0))


def pid_unless_bad(trial: Trial) -> float:
    if trial.settings and trial.settings["kind"] == "bad":
        raise ValueError("no such kind")
    return float(os.getpid())


def always_fails(trial: Trial) -> float:
    raise ValueError("no data")


def reports_rank(trial: Trial) -> float:
    """Reach `rank` at every point of the run."""
    rank = float(trial.settings.get("rank", 1000))
    for done in range(1, 10):
        if trial.report(done / 10, rank):
            (trial.folder / "stopped").touch()
            return rank
    return rank
