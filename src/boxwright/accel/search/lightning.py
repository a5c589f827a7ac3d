"""Searching settings of a Lightning module: every trial is a fit of its own Trainer, in its own process."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

from boxwright.accel.module import as_list
from boxwright.accel.search.result import SearchResult
from boxwright.accel.search.run import Search, run_search
from boxwright.accel.search.study import Direction
from boxwright.accel.search.trial import Reporter, Trial
from boxwright.core.errors import UsageError, check_choice
from boxwright.core.spaces import Space
from boxwright.launchers.base import Launcher

MakeModel = Callable[..., LightningModule]
_DIRECTIONS: dict[str, Direction] = {"max": "max", "min": "min", "maximize": "max", "minimize": "min"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FitTrial:
    """Fits the model that a trial's settings make; the value is the last one of the metric.

    Attributes:
        make_trainer: makes a Trainer from its settings.
        trainer: these settings.
        make_model: makes a model from a trial's settings.
        known: settings that `make_model` needs also for the defaults.
        metric: the name of a logged metric.
        data: what `fit` takes beside the model.
    """

    make_trainer: Callable[..., Trainer]
    trainer: Mapping[str, Any]
    make_model: MakeModel
    known: Mapping[str, Any]
    metric: str
    data: Mapping[str, Any]

    def __call__(self, trial: Trial) -> float:
        """Return the value of a trial."""
        seed_everything(trial.seed, workers=True, verbose=False)
        stop = StopIfBehind(trial.report, self.metric)
        trainer = self.make_trainer(**{
            **self.trainer,
            "default_root_dir": str(trial.folder),
            "callbacks": [*as_list(self.trainer.get("callbacks")), stop],
        })  # fmt: skip
        trainer.fit(self.make_model(**{**self.known, **trial.settings}), **self.data)
        return read_metric(trainer, self.metric)


class StopIfBehind(Callback):
    """Reports the metric after each validation, and ends the fit if the search stops the trial."""

    def __init__(self, report: Reporter, metric: str) -> None:
        self._report, self._metric = report, metric

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Report the metric, in the first process, and tell the others."""
        if trainer.sanity_checking:
            return
        stop = False
        if trainer.is_global_zero:
            done = trainer.global_step / max(float(trainer.estimated_stepping_batches), 1.0)
            stop = self._report(done, read_metric(trainer, self._metric))
        if trainer.strategy.broadcast(stop):
            trainer.should_stop = True


def read_metric(trainer: Trainer, name: str) -> float:
    """Return the last value of a logged metric.

    Raises:
        UsageError: the module has logged none of this name.
    """
    if name not in trainer.callback_metrics:
        raise UsageError(
            f"target_metric={name!r} was not logged. Logged were: {', '.join(trainer.callback_metrics) or 'none'}."
        )
    return float(trainer.callback_metrics[name])


def search_model(
    make_trainer: Callable[..., Trainer],
    trainer: Mapping[str, Any],
    make_model: MakeModel,
    spaces: Mapping[str, Space],
    data: Mapping[str, Any],
    *,
    launcher: Launcher | None,
    target_metric: str,
    direction: str,
    folder: Path,
    resume: bool,
    trials: int,
    repeats: int,
    seed: int,
) -> tuple[LightningModule, SearchResult]:
    """Run a search and return a new model with the settings to use, and the trials; see `Trainer.search`.

    Raises:
        UsageError: a setting has no default, or the folder holds a search that is not to be resumed.
    """
    check_choice("direction", direction, _DIRECTIONS)
    defaults = find_defaults(make_model, spaces)
    known = {name: space.default for name, space in spaces.items() if space.default is not None}
    search = Search(
        folder=folder.resolve(),
        spaces=spaces,
        defaults=defaults,
        metric=target_metric,
        direction=_DIRECTIONS[direction],
        trials=trials,
        repeats=repeats,
        seed=seed,
        about={"model": getattr(make_model, "__qualname__", type(make_model).__qualname__)},
    )
    if search.journal.exists() and not resume:
        raise UsageError(
            f"{str(search.folder)!r} holds a search already. Continue it with resume=True, or choose another folder."
        )
    fit = FitTrial(
        make_trainer=make_trainer, trainer=trainer, make_model=make_model, known=known, metric=target_metric, data=data
    )
    result = run_search(search, fit, launcher)
    return partial(make_model, **known)(**result.settings), result


def find_defaults(make_model: MakeModel, spaces: Mapping[str, Space]) -> dict[str, Any]:
    """Return the value of each setting without a search: the space's default, or the one in the signature.

    Raises:
        UsageError: a setting has neither, or the function does not take it.
    """
    parameters = inspect.signature(make_model).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    name_of = getattr(make_model, "__name__", type(make_model).__name__)
    defaults = {}
    for name, space in spaces.items():
        own = parameters[name].default if name in parameters else inspect.Parameter.empty
        if name not in parameters and not takes_any:
            raise UsageError(f"{name_of}() takes no {name!r}, which has a space. It takes: {', '.join(parameters)}.")
        if space.default is None and own is inspect.Parameter.empty:
            raise UsageError(
                f"{name!r} has no default, and trial 0 is the defaults. Give {name_of}() one, or the space: default=…"
            )
        defaults[name] = own if space.default is None else space.default
    return defaults
