"""TorchScript: the model traced and frozen, run by PyTorch's own interpreter."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.core.signature import Signature
from boxwright.core.types import Precision
from boxwright.runtimes.base import Choice, Tuning, check_offer
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.fold import set_module
from boxwright.runtimes.fused import FusedConv
from boxwright.runtimes.onednn import Int8Layer, lower_to_onednn
from boxwright.runtimes.program import ModuleGraph, lay_channels_last, load_program, prepare, save_program
from boxwright.runtimes.quantized import quantize
from boxwright.runtimes.source import Source
from boxwright.runtimes.tracing import load_trace, save_trace, trace

_SHAPES = "shapes.json"
_MODES = {Precision.FP32: ("",), Precision.BF16: ("",), Precision.INT8: ("",)}


class JitRuntime:
    """Writes a frozen trace; for int8 the program, which is traced when loading has packed its weights.

    oneDNN's graph fuser stays off, because it is a switch for the whole process.
    """

    name = "jit"

    def convert(self, source: Source, choice: Choice, folder: Path, calibration: Calibration | None) -> dict[str, Any]:
        """Write the traced model."""
        check_offer(choice, calibration, modes=_MODES)
        if choice.precision is Precision.INT8:
            assert calibration is not None
            module, recipe = quantize(source, choice, calibration)
            shapes = [list(t.shape) for t in source.roomy()]
            (folder / _SHAPES).write_text(json.dumps(shapes) + "\n", encoding="utf-8")
            return recipe | save_program(source, module, folder)
        module, recipe = prepare(source, choice, fuse=True, calibration=calibration)
        if choice.channels_last:
            lay_channels_last(module)
        _script_kernels(module)
        return recipe | save_trace(source, module, folder)

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> ModuleGraph:
        """Return a graph over the traced model."""
        if choice.precision is Precision.INT8:
            module = load_program(folder, _make_traceable, channels_last=choice.channels_last)
            script, _ = trace(module, _zeros(signature, folder / _SHAPES))
        else:
            script = load_trace(folder)
        return ModuleGraph(script, signature, tuning, keep_layout=choice.channels_last)


def _make_traceable(module: torch.fx.GraphModule) -> None:
    """Put a program on int8 kernels, and its size and reshape operators into a form that a trace keeps free."""
    lower_to_onednn(module)
    _script_kernels(module)
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.sym_size.int:
            node.target = Tensor.size
        elif node.target in (torch.ops.aten.reshape.default, torch.ops.aten.view.default):
            node.target = torch.reshape
    module.recompile()


def _script_kernels(module: nn.Module) -> None:
    """Script the layers on oneDNN's kernels: a trace can't record the kernels' arguments."""
    for name, part in list(module.named_modules()):
        if isinstance(part, Int8Layer | FusedConv):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                set_module(module, name, torch.jit.script(part))


def _zeros(signature: Signature, file: Path) -> list[Tensor]:
    """Return inputs to trace with, of the example's shapes."""
    if file.is_file():
        shapes = json.loads(file.read_text(encoding="utf-8"))
    else:  # written before other axes than the batch could be free
        shapes = [[2 if size is None else size for size in port.shape] for port in signature.inputs]
    return [
        torch.zeros([int(n) for n in shape], dtype=getattr(torch, port.dtype))
        for port, shape in zip(signature.inputs, shapes, strict=True)
    ]
