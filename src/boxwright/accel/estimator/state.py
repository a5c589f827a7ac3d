"""The state of a training: what a checkpoint holds, and what the user's callbacks see."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from boxwright.accel.checkpoint import is_checkpoint, load_checkpoint, save_checkpoint
from boxwright.accel.estimator.blueprint import Result
from boxwright.accel.nano import TorchNano
from boxwright.accel.places import to_read, to_write
from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.hooks import check_hooks
from boxwright.core.torch_files import UNREADABLE, why_unreadable

_FORMAT = "boxwright.estimator.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of a training.

    Attributes:
        model: the weights by name; None before there are any.
        optimizer: the optimizer's state; None before the first `fit`.
        scheduler: the learning rate scheduler's.
        scaler: the loss scaler's, with precision 16.
        epoch: epochs done.
        iteration: steps done.
        stats: the numbers of each epoch of the `fit` that wrote it.
        run: which `fit` that was.
    """

    model: dict[str, Tensor] | None = None
    optimizer: dict[str, Any] | None = None
    scheduler: dict[str, Any] | None = None
    scaler: dict[str, Any] = field(default_factory=dict)
    epoch: int = 0
    iteration: int = 0
    stats: list[dict[str, Any]] = field(default_factory=list)
    run: str = ""

    def save(self, place: str) -> None:
        """Write it atomically; the old file is kept as the previous one."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        # As text: loading a checkpoint runs no code, and a user's metric may return values of any class.
        values["stats"] = json.dumps(self.stats, default=repr)
        with to_write(place) as path:
            save_checkpoint(path, {"format": _FORMAT, **values})

    @classmethod
    def load(cls, place: str) -> "State":
        """Return what `save` wrote."""
        with to_read(place) as path:
            saved = load_checkpoint(path)
        if saved.get("format") != _FORMAT:
            raise CheckpointError(
                f"{place!r} is not a checkpoint of an estimator's training. Weights alone are read by load()."
            )
        return cls(**{f.name: saved[f.name] for f in fields(cls)} | {"stats": json.loads(saved["stats"])})


def to_cpu(values: Any) -> Any:
    """Return nested values with copies of every tensor in main memory."""
    return tree_map(lambda v: v.detach().cpu().clone() if isinstance(v, Tensor) else v, values)


def read_weights(place: str) -> dict[str, Any]:
    """Return the weights of a file or URL: `save`'s, a checkpoint's, or a plain state dict that torch wrote."""
    saved: Any
    with to_read(place) as path:
        if is_checkpoint(path):
            saved = load_checkpoint(path)
        else:
            try:
                saved = torch.load(path, map_location="cpu", weights_only=True)
            except UNREADABLE as error:
                raise CheckpointError(f"The weights {place!r} can't be read: {why_unreadable(error)}") from error
    if isinstance(saved, Mapping) and saved.get("format") == _FORMAT:
        saved = saved["model"]
    if not isinstance(saved, Mapping) or not any(isinstance(v, Tensor) for v in saved.values()):
        raise CheckpointError(f"The file {place!r} holds no state dict. Save one with save().")
    return dict(saved)


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
        check_hooks(one, f"callbacks[{number}]", _MOMENTS)
    return tuple(callbacks)
