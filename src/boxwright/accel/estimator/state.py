"""The state of a training: what a checkpoint holds, and the files that hold weights."""

import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from boxwright.accel.checkpoint import is_checkpoint, load_checkpoint, save_checkpoint
from boxwright.accel.places import to_read, to_write
from boxwright.core.errors import CheckpointError
from boxwright.core.files import write_whole
from boxwright.core.torch_files import UNREADABLE, why_unreadable

_FORMAT = "boxwright.estimator.1"
_ENTIRE = (
    " A whole model, as save(entire=True) writes it, is loaded with trust=True; do that only if you know who made it."
)


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
            kind = WeightsAlone if any(isinstance(value, Tensor) for value in saved.values()) else CheckpointError
            raise kind(f"{place!r} is not a checkpoint of an estimator's training.")
        return cls(**{f.name: saved[f.name] for f in fields(cls)} | {"stats": json.loads(saved["stats"])})


class WeightsAlone(CheckpointError):
    """The file holds weights, and nothing else that training needs."""


def to_cpu(values: Any) -> Any:
    """Return nested values with copies of every tensor in main memory."""
    return tree_map(lambda v: v.detach().cpu().clone() if isinstance(v, Tensor) else v, values)


def write_entire(path: Path, model: nn.Module) -> None:
    """Write a whole model, pickled by torch.

    Raises:
        CheckpointError: it can't be pickled, or the file could not be written.
    """
    buffer = io.BytesIO()
    try:
        torch.save(model, buffer)
        write_whole(path, buffer.getvalue())
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise CheckpointError(f"The model can't be pickled: {error}. Save its weights: save(path).") from error
    except OSError as error:
        raise CheckpointError(f"{str(path)!r} could not be written: {error.strerror or error}.") from error


def read_weights(place: str, *, trust: bool = False) -> dict[str, Any]:
    """Return the weights of a file or URL: `save`'s, a checkpoint's, or a plain state dict that torch wrote.

    A whole model is pickled: loading it runs its code, so it is read only with `trust`.
    """
    saved: Any
    with to_read(place) as path:
        if is_checkpoint(path):
            saved = load_checkpoint(path)
        else:
            try:
                saved = torch.load(path, map_location="cpu", weights_only=not trust)
            except UNREADABLE as error:
                advice = "" if trust or not zipfile.is_zipfile(path) else _ENTIRE
                raise CheckpointError(
                    f"The weights {place!r} can't be read: {why_unreadable(error)}{advice}"
                ) from error
    if isinstance(saved, nn.Module):
        saved = saved.state_dict()
    if isinstance(saved, Mapping) and saved.get("format") == _FORMAT:
        saved = saved["model"]
    if not isinstance(saved, Mapping) or not any(isinstance(v, Tensor) for v in saved.values()):
        raise CheckpointError(f"The file {place!r} holds no state dict. Save one with save().")
    return dict(saved)
