"""Traces of flat models: made, checked, written and read."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.core.errors import CheckpointError, ConversionError
from boxwright.runtimes.base import first_line
from boxwright.runtimes.parity import distance
from boxwright.runtimes.source import Source

SCRIPT = "model.ts"
_SAME = 1e-2
_PLACES = 3


@contextmanager
def quiet_tracing() -> Iterator[dict[str, Any]]:
    """Hide the warnings of a tracer; the dictionary then has a "note" if branches of the model were frozen.

    Running the trace finds most values that became constants. It can't find a branch that the examples don't take.
    """
    told: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("ignore")
        kind = torch.jit.TracerWarning  # type: ignore[attr-defined]
        warnings.filterwarnings("always", ".*Python boolean.*", kind)
        yield told
    places = list(dict.fromkeys(f"{Path(warning.filename).name}:{warning.lineno}" for warning in seen))
    if places:
        more = f" and {len(places) - _PLACES} more" if len(places) > _PLACES else ""
        told["note"] = (
            f"frozen as the example took it: the branch at {', '.join(places[:_PLACES])}{more}; "
            "inputs that would go another way may give other results"
        )


def trace(module: nn.Module, example: Sequence[Tensor]) -> tuple[Any, dict[str, Any]]:
    """Return the frozen trace of a flat module, and what `quiet_tracing` tells of it.

    Raises:
        ConversionError: the model can't be traced.
    """
    try:
        with quiet_tracing() as told, torch.inference_mode():
            traced = torch.jit.trace(module, tuple(example), check_trace=False)  # type: ignore[no-untyped-call]
            frozen = torch.jit.freeze(traced.eval())
        return frozen, told
    except Exception as error:  # a user's model may raise anything
        raise ConversionError(f"torch.jit can't trace the model: {first_line(error)}") from error


def save_trace(source: Source, module: nn.Module, folder: Path) -> dict[str, Any]:
    """Write the frozen trace of a flat module; return what is to be known of it.

    "batch" is there where it holds for the example's batch alone, "note" where a branch was frozen.

    Raises:
        ConversionError: the model can't be traced.
    """
    script, told = trace(module, source.example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(script, folder / SCRIPT)
    if not source.signature.free_batch or _follows(script, module, source.example):
        return told
    return told | {"batch": source.example[0].shape[0]}


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


def _follows(script: Any, module: nn.Module, example: Sequence[Tensor]) -> bool:
    """Return whether a trace gives the model's outputs for a bigger batch too."""
    more = [torch.cat((t, t.flip(0)[:1])) for t in example]
    with torch.inference_mode():
        expected = [t.numpy() for t in module(*more)]
        try:
            outputs = [t.numpy() for t in script(*more)]
        except RuntimeError:
            return False
    return distance(outputs, expected) < _SAME
