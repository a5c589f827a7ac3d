"""Tuning a detector: `tune(config)` trains with other settings, and says which are better than the defaults."""

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from boxwright.accel.places import is_url
from boxwright.accel.search.result import SearchResult
from boxwright.accel.search.run import Search, run_search
from boxwright.accel.search.trial import Reporter, Trial
from boxwright.accel.strategy import make_launcher
from boxwright.core import catalogue, log
from boxwright.core.config import to_dict, to_yaml
from boxwright.core.errors import UsageError
from boxwright.core.files import write_whole
from boxwright.launchers.base import Launcher
from boxwright.tasks.train.config import TrainConfig
from boxwright.tasks.train.loggers import Callback, Values
from boxwright.tasks.train.run import train
from boxwright.tasks.tune.config import SETTINGS, TuneConfig, save_config, with_settings

_OWN = ("output_dir", "resume")


def tune(config: TuneConfig) -> SearchResult:
    """Run the trials, compare the best one with the defaults, and return all of them.

    Every trial is a training run in a process of its own. In the search's folder are `tune.yaml` and `journal.log`
    (for `resume`), `trials/` with a run folder each, `trials.json` (the result) and `best.yaml`: the settings to train
    with, which are the defaults unless others are surely better.

    Raises:
        UsageError: a setting is wrong, or the folder holds another search.
        DataError: the set can't be used.
    """
    run = _at_absolute_paths(config.train)
    folder = run.output_dir
    search = Search(
        folder=folder,
        spaces=config.spaces,
        defaults=config.defaults(),
        metric="AP",
        direction="max",
        trials=config.trials,
        repeats=config.repeats,
        seed=run.seed,
        about={name: value for name, value in to_dict(run).items() if name not in _OWN},
    )
    if search.journal.exists() and not config.resume:
        raise UsageError(f"{str(folder)!r} holds a search already. Resume it with --resume, or choose another folder.")
    save_config(replace(config, train=run), folder / SETTINGS)
    with _open_launcher(config) as launcher:
        result = run_search(search, partial(_train, run), launcher)
    best = replace(with_settings(run, result.settings), output_dir=folder / "best")
    write_whole(folder / "best.yaml", to_yaml(best))
    write_whole(folder / "trials.json", json.dumps(result.to_dict(), indent=1) + "\n")
    return result


@contextmanager
def _open_launcher(config: TuneConfig) -> Iterator[Launcher | None]:
    """Yield what starts the trials; Ray stays connected for all of them."""
    if config.engine == "local":
        yield None
        return
    with catalogue.load("engine", config.engine)(config.address):
        yield make_launcher(config.engine)


def _at_absolute_paths(run: TrainConfig) -> TrainConfig:
    data = run.data if is_url(str(run.data)) else Path(run.data).resolve()
    ckpt = None if run.ckpt is None else run.ckpt.resolve()
    return replace(run, output_dir=run.output_dir.resolve(), data=data, ckpt=ckpt)


def _train(run: TrainConfig, trial: Trial) -> float:
    """Train with a trial's settings, in its own process, and return the best AP."""
    log.configure("normal")
    config = replace(with_settings(run, trial.settings), output_dir=trial.folder / "run", seed=trial.seed)
    result = train(config, callbacks=[_StopIfBehind(trial.report, config)])
    if not result.best:
        raise UsageError("The set has no images to score. Hold some out with --val 0.1.")
    return result.best["AP"]


class _StopIfBehind(Callback):
    """Reports each evaluation, and ends the run if the search stops the trial."""

    def __init__(self, report: Reporter, config: TrainConfig) -> None:
        self._report, self._config = report, config
        self._total: float | None = config.steps

    def on_step(self, step: int, values: Values) -> None:
        if self._config.steps is None and values["epoch"]:
            self._total = self._config.max_epoch * step / values["epoch"]

    def on_evaluation(self, step: int, values: Mapping[str, Any]) -> None:
        if self._total and self._report(step / self._total, values["AP"]):
            signal.raise_signal(signal.SIGTERM)  # all processes of the run then end after the same step
