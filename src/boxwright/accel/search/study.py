"""The journal of a search: Optuna's studies in one file, which the search and its trials append to."""

from contextlib import suppress
from pathlib import Path
from typing import Literal

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study

Direction = Literal["max", "min"]

SEARCH, REPEATS = "search", "repeats"
"""The studies of a journal: the trials, and the repeated runs of the best one and the defaults."""
WHOLE = 100
"""Trials report at percents of their run."""

_FIRST = 10  # Hyperband stops nothing before this percentage
_FACTOR = 3


def open_study(journal: Path, name: str, direction: Direction) -> Study:
    """Return a study of a journal; both are made if they are not there."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it writes a line of its own for each trial
    return optuna.create_study(
        study_name=name,
        storage=JournalStorage(JournalFileBackend(str(journal))),
        direction="maximize" if direction == "max" else "minimize",
        pruner=optuna.pruners.HyperbandPruner(min_resource=_FIRST, max_resource=WHOLE, reduction_factor=_FACTOR),
        load_if_exists=True,
    )


def repair_journal(journal: Path) -> None:
    """Remove what a killed search left: half a line at the end, and Optuna's lock. No other process may be using it."""
    with suppress(FileNotFoundError):
        content = journal.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with journal.open("r+b") as file:
                file.truncate(len(whole))
    for leftover in journal.parent.glob(f"{journal.name}.lock*"):
        leftover.unlink(missing_ok=True)


def report(journal: Path, direction: Direction, trial_id: int, percent: int, value: float) -> bool:
    """Write what a trial has reached into the journal, and return whether Hyperband stops the trial here."""
    trial = optuna.Trial(open_study(journal, SEARCH, direction), trial_id)
    trial.report(value, percent)
    stop = trial.should_prune()
    if stop:
        trial.set_user_attr("pruned", percent)
    return stop
