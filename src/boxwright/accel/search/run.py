"""A search: trials with proposed settings, then the best of them against the defaults with new seeds."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from boxwright.accel.search.result import Arm, RepeatRow, SearchResult, State, TrialRow
from boxwright.accel.search.study import REPEATS, SEARCH, Direction, open_study, repair_journal
from boxwright.accel.search.trial import Objective, Reporter, Trial, run_trial
from boxwright.core.errors import BoxwrightError, UsageError, WorkerError
from boxwright.core.files import locked
from boxwright.core.intervals import mean_interval
from boxwright.core.log import get_logger
from boxwright.core.spaces import Space
from boxwright.launchers.base import Launcher
from boxwright.launchers.local import SubprocessLauncher

_log = get_logger(__name__)
_RANDOM_TRIALS = 5  # before TPE proposes anything
_DONE = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What to search, and how long.

    Attributes:
        folder: for the journal and the files of each trial. A folder with a journal is resumed.
        spaces: the values of each setting.
        defaults: each setting's value without a search.
        metric: what the value of a trial is called.
        direction: whether more ("max") or less ("min") of it is better.
        trials: how many, with the defaults, which are trial 0.
        repeats: with how many new seeds the best trial is compared with the defaults.
        seed: of the proposals and of every trial; the repeated runs have the seeds after it.
        about: further facts that a resumed search must share, as plain JSON values.
    """

    folder: Path
    spaces: Mapping[str, Space]
    defaults: Mapping[str, Any]
    metric: str
    direction: Direction
    trials: int
    repeats: int = 3
    seed: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.spaces:
            raise UsageError("There is nothing to search. Give at least one setting a space.")
        if self.trials < 2:
            raise UsageError(f"trials={self.trials!r} must be at least 2: the first one is the defaults.")
        if self.repeats < 2:
            raise UsageError(f"repeats={self.repeats!r} must be at least 2: an interval needs two differences.")

    @property
    def journal(self) -> Path:
        """The file that a search is resumed from."""
        return self.folder / "journal.log"

    def facts(self) -> dict[str, Any]:
        """Return what a resumed search must share with the one that began it."""
        spaces = {name: repr(space) for name, space in self.spaces.items()}
        return {
            "spaces": spaces, "metric": self.metric, "direction": self.direction, "seed": self.seed, **self.about,
        }  # fmt: skip


def run_search(search: Search, objective: Objective, launcher: Launcher | None = None) -> SearchResult:
    """Run the trials that are missing, then the repeats, and return all of them.

    Each trial runs in a process of its own. One that fails becomes a row, except the defaults: their error is raised.

    Args:
        search: what to search.
        objective: runs a trial; see `Trial`.
        launcher: starts the trials' processes; `SubprocessLauncher()` by default.

    Raises:
        UsageError: the folder belongs to another search, or another program is using it.
        BoxwrightError: the defaults failed; `WorkerFailed` if the reason is an error of other code.
    """
    search.folder.mkdir(parents=True, exist_ok=True)
    busy = UsageError(f"Another search is writing to {str(search.folder)!r}. Choose another folder.")
    with locked(search.folder / ".lock", wait_s=0, refusal=busy):
        repair_journal(search.journal)
        study = open_study(search.journal, SEARCH, search.direction)
        repeats = open_study(search.journal, REPEATS, search.direction)
        _check_facts(study, search)
        return _Run(search, objective, launcher or SubprocessLauncher(), study, repeats).run()


def _check_facts(study: Study, search: Search) -> None:
    """Store what this search is, or compare it with what the journal's search was.

    Raises:
        UsageError: they differ.
    """
    known, now = study.user_attrs.get("facts"), search.facts()
    if known is None:
        study.set_user_attr("facts", now)
        return
    changed = [f"{name} was {known.get(name)!r} and is {now.get(name)!r}" for name in {**known, **now}
               if known.get(name) != now.get(name)]  # fmt: skip
    if changed:
        raise UsageError(
            f"{str(search.folder)!r} holds another search: {'; '.join(changed)}. Use its settings, or another folder."
        )


class _Run:
    """A search that runs."""

    def __init__(self, search: Search, objective: Objective, launcher: Launcher, study: Study, repeats: Study) -> None:
        self._search, self._objective, self._launcher = search, objective, launcher
        self._study, self._repeats = study, repeats

    def run(self) -> SearchResult:
        self._clean_up()
        if not self._study.trials:
            self._study.enqueue_trial(self._known_defaults, user_attrs={"defaults": True})
        while (done := self._count_done()) < self._search.trials:
            self._study.sampler = optuna.samplers.TPESampler(
                seed=self._search.seed + done, n_startup_trials=_RANDOM_TRIALS
            )
            self._run_one(self._study.ask())
        best = self._find_best()
        failure = "" if best.user_attrs.get("defaults") else self._repeat(best)
        return self._result(best, failure)

    @property
    def _known_defaults(self) -> dict[str, Any]:
        """The defaults if they are a point of the space, from which TPE learns; otherwise nothing."""
        search = self._search
        inside = all(space.contains(search.defaults.get(name)) for name, space in search.spaces.items())
        return {name: search.defaults[name] for name in search.spaces} if inside else {}

    def _clean_up(self) -> None:
        """Queue again what was running when the search was killed."""
        for trial in self._study.get_trials(states=(TrialState.RUNNING,)):
            self._study.tell(trial.number, state=TrialState.FAIL)
            self._queue_again(trial.number, trial.params, is_default=bool(trial.user_attrs.get("defaults")))
            _log.info("trial %d was interrupted and runs again", trial.number)
        for trial in self._repeats.get_trials(states=(TrialState.RUNNING,)):
            self._repeats.tell(trial.number, state=TrialState.FAIL)

    def _queue_again(self, number: int, settings: Mapping[str, Any], *, is_default: bool) -> None:
        values = self._known_defaults if is_default else dict(settings)
        self._study.enqueue_trial(values, user_attrs={"again": number, **({"defaults": True} if is_default else {})})

    def _interrupted(self) -> set[int]:
        return {t.user_attrs["again"] for t in self._study.trials if "again" in t.user_attrs}

    def _count_done(self) -> int:
        interrupted = self._interrupted()
        return sum(t.state in _DONE and t.number not in interrupted for t in self._study.trials)

    def _run_one(self, trial: optuna.Trial) -> None:
        """Run one trial of the search and tell the study."""
        is_default = bool(trial.user_attrs.get("defaults"))
        settings: dict[str, Any] = {}
        if not is_default or self._known_defaults:
            settings = {name: space.suggest(trial, name) for name, space in self._search.spaces.items()}
        reporter = Reporter(
            journal=self._search.journal,
            direction=self._search.direction,
            trial_id=trial._trial_id,
            may_stop=not is_default,
        )
        place = f"{self._count_done() + 1}/{self._search.trials}"
        name = f"{place}: trial {trial.number} ({'defaults' if is_default else _words(settings)})"
        began_s = time.monotonic()
        try:
            value = self._value({} if is_default else settings, self._search.seed, f"{trial.number:03}", reporter)
        except WorkerError as error:
            trial.set_user_attr("note", _reason(error))
            self._study.tell(trial, state=TrialState.FAIL)
            if is_default:
                self._queue_again(trial.number, {}, is_default=True)
                if isinstance(error.__cause__, BoxwrightError):
                    raise error.__cause__ from None
                raise
            _log.warning("%s failed: %s", name, _reason(error))
            return
        seconds = time.monotonic() - began_s
        trial.set_user_attr("seconds", round(seconds, 3))
        stopped_at = self._study.trials[trial.number].user_attrs.get("pruned")
        if stopped_at is not None and not is_default:
            self._study.tell(trial, state=TrialState.PRUNED)
            _log.info("%s: stopped at %d %% after %.1f s", name, stopped_at, seconds)
        else:
            self._study.tell(trial, value)
            _log.info("%s: %s %.4f after %.1f s", name, self._search.metric, value, seconds)

    def _value(self, settings: Mapping[str, Any], seed: int, name: str, reporter: Reporter) -> float:
        folder = self._search.folder / "trials" / name
        trial = Trial(settings=settings, seed=seed, folder=folder, report=reporter)
        value = run_trial(self._objective, trial, self._launcher)
        if not math.isfinite(value):
            raise WorkerError(f"its {self._search.metric} is {value}")
        return value

    def _find_best(self) -> FrozenTrial:
        complete = self._study.get_trials(states=(TrialState.COMPLETE,))
        sign = 1 if self._search.direction == "max" else -1
        return max(complete, key=lambda t: (sign * (t.value or 0.0), -t.number))

    def _repeat(self, best: FrozenTrial) -> str:
        """Run the best settings and the defaults with each new seed, unless the journal has these runs.

        Return why the best settings failed; "" if they did not.
        """
        silent = Reporter(journal=None, direction=self._search.direction, trial_id=0, may_stop=False)
        arms: tuple[tuple[Arm, dict[str, Any]], ...] = (("defaults", {}), ("best", best.params))
        for seed in self._seeds():
            for arm, settings in arms:
                if self._repeated(settings, seed) is not None:
                    continue
                run = self._repeats.ask()
                run.set_user_attr("settings", settings)
                run.set_user_attr("seed", seed)
                try:
                    value = self._value(settings, seed, f"repeat-{run.number:03}", silent)
                except WorkerError as error:
                    self._repeats.tell(run, state=TrialState.FAIL)
                    if arm == "defaults":
                        raise
                    return f"with seed {seed}: {_reason(error)}"
                self._repeats.tell(run, value)
                _log.info("%s with seed %d: %s %.4f", arm, seed, self._search.metric, value)
        return ""

    def _seeds(self) -> range:
        return range(self._search.seed + 1, self._search.seed + 1 + self._search.repeats)

    def _repeated(self, settings: Mapping[str, Any], seed: int) -> float | None:
        for run in self._repeats.get_trials(states=(TrialState.COMPLETE,)):
            if run.user_attrs["settings"] == settings and run.user_attrs["seed"] == seed:
                return run.value
        return None

    def _result(self, best: FrozenTrial, failure: str) -> SearchResult:
        interrupted = self._interrupted()
        repeats: list[RepeatRow] = []
        gains: list[float] = []
        for seed in () if best.user_attrs.get("defaults") else self._seeds():
            theirs, ours = self._repeated({}, seed), self._repeated(best.params, seed)
            if theirs is not None and ours is not None:
                repeats.append(RepeatRow(arm="defaults", seed=seed, value=theirs))
                repeats.append(RepeatRow(arm="best", seed=seed, value=ours))
                gains.append(ours - theirs if self._search.direction == "max" else theirs - ours)
        return SearchResult(
            metric=self._search.metric,
            direction=self._search.direction,
            trials=[_row(trial, interrupted) for trial in self._study.trials if trial.state in _DONE],
            best=best.number,
            repeats=repeats,
            gain=mean_interval(gains) if len(gains) > 1 and not failure else None,
            failure=failure,
        )


def _row(trial: FrozenTrial, interrupted: set[int]) -> TrialRow:
    facts = trial.user_attrs
    state: State = "complete"
    note = facts.get("note", "")
    if trial.state == TrialState.PRUNED:
        state, note = "pruned", f"stopped at {facts['pruned']} %"
    elif trial.state == TrialState.FAIL:
        state = "interrupted" if trial.number in interrupted else "failed"
    if facts.get("defaults"):
        note = "the defaults"
    return TrialRow(
        number=trial.number,
        settings=trial.params,
        value=trial.value,
        state=state,
        seconds=facts.get("seconds"),
        note=note,
    )


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in settings.items())


def _reason(error: BaseException) -> str:
    """Return the last line of what a worker raised, which names the error."""
    cause = error.__cause__
    if cause is not None:
        return f"{type(cause).__name__}: {cause}"
    return str(error).strip().splitlines()[-1]
