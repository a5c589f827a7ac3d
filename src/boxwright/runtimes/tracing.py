"""Traces of flat models: make, check, write and read them."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.core.errors import CheckpointError, ConversionError
from boxwright.core.files import naming
from boxwright.runtimes.base import first_line
from boxwright.runtimes.source import Source
from boxwright.runtimes.trust import SCRIPT

_PLACES = 3


@contextmanager
def quiet_tracing() -> Iterator[dict[str, Any]]:
    """Hide a tracer's warnings; the dictionary gets a "note" if branches of the model were frozen.

    Running the trace finds most values that became constants, but not a branch that the examples don't take.
    """
    notes: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("ignore")
        kind = torch.jit.TracerWarning  # type: ignore[attr-defined]
        warnings.filterwarnings("always", ".*Python boolean.*", kind)
        yield notes
    places = list(dict.fromkeys(f"{Path(warning.filename).name}:{warning.lineno}" for warning in seen))
    if places:
        more = f" and {len(places) - _PLACES} more" if len(places) > _PLACES else ""
        notes["note"] = (
            f"frozen as the example took it: the branch at {', '.join(places[:_PLACES])}{more}; "
            "inputs that would go another way may give other results"
        )


def trace(module: nn.Module, example: Sequence[Tensor]) -> tuple[Any, dict[str, Any]]:
    """Return the frozen trace of a flat module, and the notes of `quiet_tracing`.

    Raises:
        ConversionError: the model can't be traced.
    """
    try:
        with quiet_tracing() as notes, torch.inference_mode():
            traced = torch.jit.trace(module, tuple(example), check_trace=False)  # type: ignore[no-untyped-call]
            frozen = torch.jit.freeze(traced.eval())
        return frozen, notes
    except Exception as error:  # a user's model may raise anything
        raise ConversionError(f"torch.jit can't trace the model: {first_line(error)}") from error


def save_trace(source: Source, module: nn.Module, folder: Path) -> dict[str, Any]:
    """Write the frozen trace of a flat module; return notes.

    Raises:
        ConversionError: the model can't be traced.
    """
    script, notes = trace(module, source.roomy())
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(script, buffer)
    with naming(folder / SCRIPT):  # not by torch, which aborts the process when the disk is full
        (folder / SCRIPT).write_bytes(buffer.getbuffer())
    return notes


def load_trace(folder: Path) -> Any:
    """Return a written trace.

    Raises:
        CheckpointError: the file is missing or broken.
    """
    path = folder / SCRIPT
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.load(path)  # type: ignore[no-untyped-call]
    except (RuntimeError, OSError, ValueError) as error:
        raise CheckpointError(f"{str(path)!r} can't be loaded: {first_line(error)}") from error
