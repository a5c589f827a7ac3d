"""Callbacks of the user around the run, each epoch and each iteration, inside every worker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from boxwright.accel.estimator.blueprint import Result
from boxwright.accel.nano import TorchNano
from boxwright.core.errors import UsageError


@dataclass(slots=True, kw_only=True)
class Run:
    """What a callback sees of the training in its worker.

    Attributes:
        nano: ranks and collectives of this worker.
        config: the estimator's config.
        model: the model being trained.
        optimizer: its optimizer.
        epoch: epochs begun since the first `fit`, from 1.
        iteration: steps done since the first `fit`.
        batch: the batch of this iteration, preprocessed.
        result: losses and outputs of this iteration, once it is done.
        metrics: the numbers of the epoch, once it is done.
        lr: the learning rate of the first parameter group.
    """

    nano: TorchNano
    config: Mapping[str, Any]
    model: nn.Module
    optimizer: Any
    epoch: int = 0
    iteration: int = 0
    batch: Any = None
    result: Result | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    asked_to_stop: bool = False

    @property
    def lr(self) -> float:
        """The learning rate of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def stop(self) -> None:
        """End the training after this epoch; one worker is enough to ask for it."""
        self.asked_to_stop = True


class Callback:
    """Does nothing; override the methods you need. Every worker has its own copy; `run.nano.global_rank` is its rank.

    What a callback stores stays in its worker. To get something back, write it to a file or print it.

    Example:
        >>> class StopEarly(Callback):
        ...     def after_epoch(self, run):
        ...         if run.metrics["train_loss"] < 0.1:
        ...             run.stop()
    """

    def before_run(self, run: Run) -> None:
        """Everything is built; training begins."""

    def after_run(self, run: Run) -> None:
        """Training has ended, normally or by an error."""

    def before_epoch(self, run: Run) -> None:
        """An epoch begins."""

    def after_epoch(self, run: Run) -> None:
        """An epoch is trained and validated; `run.metrics` holds its numbers. The checkpoint comes next."""

    def before_iteration(self, run: Run) -> None:
        """`run.batch` is there, preprocessed; forward comes next."""

    def after_iteration(self, run: Run) -> None:
        """The optimizer has stepped; `run.result` holds losses and outputs."""


_MOMENTS = tuple(name for name in vars(Callback) if name.startswith(("before_", "after_")))


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Return the callbacks of one `fit`."""
    if not isinstance(callbacks, Sequence):
        raise UsageError(f"callbacks is a {type(callbacks).__name__}. Give a list of them.")
    for number, one in enumerate(callbacks):
        if isinstance(one, type):
            raise UsageError(f"callbacks[{number}] is a class. Give an object: {one.__name__}(…).")
        if not all(callable(getattr(one, moment, None)) for moment in _MOMENTS):
            raise UsageError(
                f"callbacks[{number}] is a {type(one).__name__}. Give an object of a class that inherits from "
                f"boxwright.accel.estimator.Callback and overrides some of: {', '.join(_MOMENTS)}."
            )
    return tuple(callbacks)
