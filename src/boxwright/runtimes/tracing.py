"""Traces of flat models: made, checked, written and read."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.core.errors import CheckpointError, ConversionError
from boxwright.runtimes.parity import distance
from boxwright.runtimes.program import first_line
from boxwright.runtimes.source import Source

SCRIPT = "model.ts"
_SAME = 1e-2


def trace(module: nn.Module, example: Sequence[Tensor]) -> Any:
    """Return the frozen trace of a flat module.

    Raises:
        ConversionError: the model can't be traced.
    """
    try:
        with warnings.catch_warnings(), torch.inference_mode():
            # Python values that become constants are found by running the trace, better than by a warning.
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(module, tuple(example), check_trace=False)  # type: ignore[no-untyped-call]
            return torch.jit.freeze(traced.eval())
    except Exception as error:  # a user's model may raise anything
        raise ConversionError(f"torch.jit can't trace the model: {first_line(error)}") from error


def save_trace(source: Source, module: nn.Module, folder: Path) -> dict[str, Any]:
    """Write the frozen trace of a flat module; return {"batch": n} where it holds for the example's batch alone.

    Raises:
        ConversionError: the model can't be traced.
    """
    script = trace(module, source.example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(script, folder / SCRIPT)
    if not source.signature.free_batch or _follows(script, module, source.example):
        return {}
    return {"batch": source.example[0].shape[0]}


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
