"""Weights on disk: official checkpoints in, our own safetensors in and out.

Our files are plain safetensors with the `Spec` as JSON in the header, so one file says what it detects.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.files import naming
from boxwright.core.spec import Spec
from boxwright.core.torch_files import UNREADABLE, why_unreadable
from boxwright.detector.sizes import SIZES
from boxwright.detector.yolox import build

State = Mapping[str, Tensor]

_METADATA_KEY = "boxwright"
_PREDICTION = "head.cls_preds."
_MOST_CLASSES = 100_000  # a damaged file must not ask for a network that fills the memory


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
    if path.suffix.lower() == ".safetensors":
        return _read_safetensors(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        raise CheckpointError(
            f"{str(path)!r} can't be read as a PyTorch checkpoint: {why_unreadable(error)} "
            "Only files of plain tensors are read; one that holds other Python objects must be re-saved with "
            "torch.save(model.state_dict(), path), by the program that made it."
        ) from error
    for key in ("model", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        raise CheckpointError(f"{str(path)!r} holds a {type(content).__name__}, not a dict of tensors.")
    state = {str(k).removeprefix("module."): v for k, v in content.items() if isinstance(v, Tensor)}
    if not state:
        raise CheckpointError(f"{str(path)!r} holds no tensors: it is not a checkpoint of a model.")
    for key, value in state.items():
        if value.layout is not torch.strided or value.is_meta or value.is_quantized or value.is_complex():
            raise CheckpointError(
                f"{str(path)!r} holds {key!r} as a tensor that is not plain numbers (sparse, quantised, complex, or "
                "without data). Save it again with dense tensors."
            )
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
        return state, Spec.from_json(metadata[_METADATA_KEY])
    except UsageError as error:
        raise CheckpointError(f"The description inside {str(path)!r} can't be read: {error}") from error


def save_weights(path: Path, model: nn.Module, spec: Spec) -> None:
    """Write the model's tensors and its spec as one safetensors file.

    The file appears whole or not at all: it is written beside its place, flushed to disk and renamed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    try:
        # Not save_file: it makes a file that no other user may read, such as the one a server runs as.
        with naming(path, draft):
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
    classes = count_classes(state) or 80
    if classes > _MOST_CLASSES:
        raise CheckpointError(f"The checkpoint has {classes} classes; at most {_MOST_CLASSES} are possible.")
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


def check_finite(state: State, source: Path) -> None:
    """Refuse weights that hold NaN or infinity: such a network silently finds nothing.

    Raises:
        CheckpointError: there is one; the message names its tensor.
    """
    floats = {key: value for key, value in state.items() if value.is_floating_point()}
    # A sum passes on what is not finite, and is several times as fast as looking at each number.
    sums = [value.to(torch.float32).sum() for value in floats.values()]
    finite = torch.stack(sums).isfinite().tolist() if sums else []
    if not all(finite):
        key = next(key for key, good in zip(floats, finite, strict=True) if not good)
        raise CheckpointError(
            f"The weights in {str(source)!r} are damaged: {key!r} holds NaN or infinity. Use another checkpoint."
        )


def load_weights(model: nn.Module, state: State, *, new_head: bool = False) -> LoadReport:
    """Copy the tensors into the model.

    Args:
        model: the network.
        state: the tensors.
        new_head: for training: class predictions of another class count are left as they are initialised, and reported.

    Raises:
        CheckpointError: anything else differs; the message names the first mismatching key. The model is unchanged.
    """
    own = model.state_dict()
    given = {k: v for k, v in state.items() if not (k.startswith(_PREDICTION) and k in own and v.shape != own[k].shape)}
    left_out = tuple(k for k in state if k not in given)
    bias = f"{_PREDICTION}0.bias"
    if left_out and not new_head and count_classes(state) != len(own[bias]):
        raise CheckpointError(
            f"The checkpoint's class layers do not fit: they are for {count_classes(state)} classes, and this model "
            f"has {len(own[bias])}. Use the weights of these classes; only training can start from those of others."
        )
    wrong = mismatches(model, {**given, **{k: own[k] for k in left_out}} if new_head else state)
    if wrong:
        raise CheckpointError(
            f"The checkpoint does not fit this model: {wrong[0]} ({len(wrong)} keys differ in all). "
            "Choose the model that the checkpoint was made for."
        )
    model.load_state_dict(given, strict=False)
    return LoadReport(
        loaded=len(given),
        left_out=left_out,
        checkpoint_classes=count_classes(state),
        model_classes=len(own[bias]),
    )


def count_classes(state: State) -> int:
    """Return the number of classes that the tensors predict; 0 if they don't say."""
    bias = state.get(f"{_PREDICTION}0.bias")
    return 0 if bias is None or bias.ndim != 1 else len(bias)
