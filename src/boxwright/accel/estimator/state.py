"""The state of a training: weights, optimizer, scheduler and counters. The caller keeps it, a worker saves it."""

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from boxwright.accel.checkpoint import is_checkpoint, load_checkpoint, save_checkpoint
from boxwright.accel.places import to_read, to_write
from boxwright.core.errors import CheckpointError

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
            except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
                reason = getattr(error, "strerror", None) or error
                raise CheckpointError(f"The weights {place!r} can't be read: {reason}") from error
    if isinstance(saved, Mapping) and saved.get("format") == _FORMAT:
        saved = saved["model"]
    if not isinstance(saved, Mapping) or not any(isinstance(v, Tensor) for v in saved.values()):
        raise CheckpointError(f"The file {place!r} holds no state dict. Save one with save().")
    return dict(saved)
