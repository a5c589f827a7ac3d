"""Weights on disk: official checkpoints in, our own safetensors in and out.

Our files are plain safetensors with the `Spec` as JSON in the header, so one file says what it detects.
"""

import json
import os
import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from boxwright.core.errors import CheckpointError
from boxwright.core.spec import Spec
from boxwright.detector.sizes import SIZES
from boxwright.detector.yolox import build

State = Mapping[str, Tensor]

# What torch.load was seen to raise for files that are cut off, no checkpoints, or hold other objects.
_UNREADABLE = (
    pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, IndexError, AttributeError, TypeError,
    struct.error, OSError,
)  # fmt: skip
_METADATA_KEY = "boxwright"
_PREDICTION = "head.cls_preds."


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What happened to a checkpoint's tensors: how many were taken and which prediction layers were not."""

    loaded: int
    left_out: tuple[str, ...] = ()
    checkpoint_classes: int
    model_classes: int

    def sentence(self) -> str:
        """Return one line for the log."""
        if not self.left_out:
            return f"Loaded all {self.loaded} tensors."
        return (
            f"Loaded {self.loaded} tensors; the {len(self.left_out)} tensors of the class predictions stay as they are "
            f"initialised: the checkpoint has {self.checkpoint_classes} classes, this model {self.model_classes}."
        )


def read_state(path: Path) -> tuple[dict[str, Tensor], Spec | None]:
    """Return a checkpoint's tensors, and its spec if it is one of ours.

    Official `.pth` files are read with `weights_only=True`: nothing in them is executed.

    Raises:
        CheckpointError: the file is missing, is not a checkpoint, or holds no weights.
    """
    if not path.is_file():
        raise CheckpointError(f"There is no model file at {str(path)!r}. Check the path.")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{str(path)!r} can't be read as a PyTorch checkpoint: {reason} "
            "Only files of plain tensors are read; one that holds other Python objects must be re-saved with "
            "torch.save(model.state_dict(), path)."
        ) from error
    for key in ("model", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        raise CheckpointError(f"{str(path)!r} holds a {type(content).__name__}, not a dict of tensors.")
    state = {str(k).removeprefix("module."): v for k, v in content.items() if isinstance(v, Tensor)}
    if not state:
        raise CheckpointError(f"{str(path)!r} holds no tensors: it is not a checkpoint of a model.")
    return state, None


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], Spec | None]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{str(path)!r} is not a whole safetensors file: {error}") from error
    if _METADATA_KEY not in metadata:
        return state, None
    try:
        return state, Spec.from_dict(json.loads(metadata[_METADATA_KEY]))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise CheckpointError(f"The description inside {str(path)!r} can't be read: {error!r}") from error


def save_weights(path: Path, model: nn.Module, spec: Spec) -> None:
    """Write the model's tensors and its spec as one safetensors file.

    The file appears whole or not at all: it is written beside its place, flushed to disk and renamed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    try:
        # Not save_file: it makes a file that no other user may read, such as the one a server runs as.
        with draft.open("wb") as file:
            file.write(save(state, metadata={_METADATA_KEY: json.dumps(spec.to_dict())}))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def identify(state: State) -> tuple[str, int]:
    """Return which model of the family the tensors belong to, and its number of classes.

    Raises:
        CheckpointError: no model of the family fits; the message names the first mismatching key of the nearest.
    """
    bias = state.get("head.cls_preds.0.bias")
    classes = len(bias) if bias is not None and bias.ndim == 1 and len(bias) else 80
    nearest, fewest, first = "", -1, ""
    for name in SIZES:
        with torch.device("meta"):
            model = build(name, classes)
        wrong = mismatches(model, state)
        if not wrong:
            return name, classes
        if fewest < 0 or len(wrong) < fewest:
            nearest, fewest, first = name, len(wrong), wrong[0]
    raise CheckpointError(
        f"The checkpoint fits no model of the family. The nearest is {nearest}, but {fewest} keys differ; the first: "
        f"{first}. If it is another network, it can't be used here."
    )


def mismatches(model: nn.Module, state: State) -> list[str]:
    """Return a sentence for each key that is missing, unknown or of another shape, in the model's order."""
    own = model.state_dict()
    wrong = []
    for key, value in own.items():
        if key not in state:
            wrong.append(f"{key!r} is missing")
        elif state[key].shape != value.shape:
            wrong.append(f"{key!r} has shape {tuple(state[key].shape)}, expected {tuple(value.shape)}")
    wrong.extend(f"{key!r} is unknown" for key in state if key not in own)
    return wrong


def load_weights(model: nn.Module, state: State) -> LoadReport:
    """Copy the tensors into the model; class predictions of another class count are left out and reported.

    Raises:
        CheckpointError: anything else differs; the message names the first mismatching key. The model is unchanged.
    """
    own = model.state_dict()
    given = {k: v for k, v in state.items() if not (k.startswith(_PREDICTION) and k in own and v.shape != own[k].shape)}
    left_out = tuple(k for k in state if k not in given)
    wrong = mismatches(model, {**given, **{k: own[k] for k in left_out}})
    if wrong:
        raise CheckpointError(
            f"The checkpoint does not fit this model: {wrong[0]} ({len(wrong)} keys differ in all). "
            "Choose the model that the checkpoint was made for."
        )
    model.load_state_dict(given, strict=False)
    bias = f"{_PREDICTION}0.bias"
    return LoadReport(
        loaded=len(given),
        left_out=left_out,
        checkpoint_classes=len(state[bias]),
        model_classes=len(own[bias]),
    )
