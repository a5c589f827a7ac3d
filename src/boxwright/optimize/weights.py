"""Folders with the weights of a module that is not converted."""

from pathlib import Path

import torch
from torch import Tensor, nn

from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.files import whole_file
from boxwright.core.torch_files import UNREADABLE, why_unreadable

WEIGHTS = "weights.pt"


def save_weights(model: nn.Module, folder: Path, *, rounded: bool) -> None:
    """Write the weights of a module to a folder; with `rounded`, those in float32 in bfloat16."""
    weights = {
        name: value.bfloat16() if rounded and isinstance(value, Tensor) and value.dtype == torch.float32 else value
        for name, value in model.state_dict().items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / WEIGHTS) as draft:
        torch.save(weights, draft)


def load_weights(folder: Path, model: nn.Module | None) -> nn.Module:
    """Load the weights in a folder into a module, and return it.

    Raises:
        CheckpointError: they can't be read, or belong to another module.
        UsageError: there is no module.
    """
    if model is None:
        raise UsageError(f"{str(folder)!r} holds the weights of a module. Give the module too: load(folder, model).")
    try:
        weights = torch.load(folder / WEIGHTS, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        raise CheckpointError(f"{str(folder / WEIGHTS)!r} can't be read: {why_unreadable(error)}") from error
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError) as error:
        raise CheckpointError(f"The weights in {str(folder)!r} do not fit this {type(model).__name__}.") from error
    return model.eval()
