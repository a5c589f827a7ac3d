"""TorchScript: the model traced and frozen, run by PyTorch's own interpreter."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.core.errors import CheckpointError, ConversionError
from boxwright.core.signature import Signature
from boxwright.core.types import Precision
from boxwright.runtimes.base import Choice, Tuning
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.onednn import Int8Layer, lower_to_onednn
from boxwright.runtimes.parity import distance
from boxwright.runtimes.program import (
    ModuleGraph,
    check_offer,
    first_line,
    lay_channels_last,
    load_program,
    prepare,
    save_program,
)
from boxwright.runtimes.quantized import quantize
from boxwright.runtimes.source import Source

_PRECISIONS = (Precision.FP32, Precision.BF16, Precision.INT8)
_FILE = "model.ts"
_SAME = 1e-3


class JitRuntime:
    """Writes a frozen trace; for int8 the program, which is traced when its weights are packed for the machine."""

    name = "jit"

    def convert(self, source: Source, choice: Choice, folder: Path, calibration: Calibration | None) -> dict[str, Any]:
        """Write the traced model."""
        check_offer(choice, calibration, precisions=_PRECISIONS)
        if choice.precision is Precision.INT8:
            assert calibration is not None
            module, recipe = quantize(source, choice, calibration)
            return recipe | save_program(source, module, folder)
        module, recipe = prepare(source, choice)
        if choice.channels_last:
            lay_channels_last(module)
        script = trace(module, source.example)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            torch.jit.save(script, folder / _FILE)
        if source.signature.free_batch and not _follows(script, module, source.example):
            recipe["batch"] = source.example[0].shape[0]
        return recipe

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> ModuleGraph:
        """Return a graph over the traced model."""
        if choice.precision is Precision.INT8:
            module = load_program(folder, channels_last=choice.channels_last)
            lower_to_onednn(module)
            _make_traceable(module)
            script = trace(module, _zeros(signature))
        else:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)
                    script = torch.jit.load(folder / _FILE)  # type: ignore[no-untyped-call]
            except (RuntimeError, OSError, ValueError) as error:
                raise CheckpointError(f"{str(folder / _FILE)!r} can't be loaded: {first_line(error)}") from error
        return ModuleGraph(script, signature, tuning, keep_layout=choice.channels_last)


def trace(module: nn.Module, example: Sequence[Tensor]) -> Any:
    """Return the frozen trace of a flat module.

    Raises:
        ConversionError: the model can't be traced.
    """
    try:
        with warnings.catch_warnings(), torch.inference_mode():
            # Python values that become constants are checked by `_follows`, better than a warning could.
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(module, tuple(example), check_trace=False)  # type: ignore[no-untyped-call]
            return torch.jit.freeze(traced.eval())
    except Exception as error:  # a user's model may raise anything
        raise ConversionError(f"torch.jit can't trace the model: {first_line(error)}") from error


def _make_traceable(module: torch.fx.GraphModule) -> None:
    """Let a program ask for sizes and reshape in words that a trace keeps, and give it int8 kernels that it knows.

    A trace takes other words for sizes as constants, and can't record the kernels' arguments; a script can.
    """
    for name, part in list(module.named_children()):
        if isinstance(part, Int8Layer):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                setattr(module, name, torch.jit.script(part))
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.sym_size.int:
            node.target = Tensor.size
        elif node.target in (torch.ops.aten.reshape.default, torch.ops.aten.view.default):
            node.target = torch.reshape
    module.recompile()


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


def _zeros(signature: Signature) -> list[Tensor]:
    return [
        torch.zeros([2 if size is None else size for size in port.shape], dtype=getattr(torch, port.dtype))
        for port in signature.inputs
    ]
