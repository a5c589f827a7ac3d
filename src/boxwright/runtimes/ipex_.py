"""Intel's extension for PyTorch, in its last release: 2.8, with torch 2.8.

With any other torch, importing it kills the interpreter, so the installed versions are checked first.
"""

import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from boxwright.core.errors import ConversionError, MissingDependencyError
from boxwright.core.packages import installed_version
from boxwright.core.signature import Signature
from boxwright.core.types import Precision
from boxwright.runtimes.base import Choice, Tuning, check_offer, first_line
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.fold import set_module
from boxwright.runtimes.fused import constant, conv_numbers
from boxwright.runtimes.program import ModuleGraph, load_program, prepare, save_program
from boxwright.runtimes.quantized import QuantizedLayer, quantize
from boxwright.runtimes.rounding import FloatLayer
from boxwright.runtimes.source import Source
from boxwright.runtimes.tracing import load_trace, save_trace

_MODES = dict.fromkeys((Precision.FP32, Precision.BF16, Precision.INT8), ("", "jit"))
_RELEASE = "2.8"
_PACKAGES = ("torch", "intel-extension-for-pytorch")


class IpexRuntime:
    """Runs convolutions and linear layers on the extension's kernels; mode "jit" traces the model as well.

    int8 is traced in both modes: the extension makes int8 kernels only from traces.
    """

    name = "ipex"

    def convert(self, source: Source, choice: Choice, folder: Path, calibration: Calibration | None) -> dict[str, Any]:
        """Write the program, or the trace of the optimised model."""
        check_offer(choice, calibration, modes=_MODES)
        ipex = load_extension()
        if choice.precision is Precision.INT8:
            assert calibration is not None
            module, recipe = quantize(source, choice, calibration)
            for name, part in list(module.named_modules()):
                if isinstance(part, QuantizedLayer):
                    set_module(module, name, TraceableLayer(part))
            return recipe | save_trace(source, module, folder)
        module, recipe = prepare(source, choice, calibration=calibration)
        if choice.mode == "jit":
            for part in module.modules():
                if isinstance(part, FloatLayer):
                    part.layer = Hidden(part.layer)
            return recipe | save_trace(source, _optimize(ipex, module, choice), folder)
        return recipe | save_program(source, module, folder)

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> ModuleGraph:
        """Return a graph over the extension's operators."""
        ipex = load_extension()
        if choice.mode == "jit" or choice.precision is Precision.INT8:
            return ModuleGraph(load_trace(folder), signature, tuning, keep_layout=choice.channels_last)
        program = load_program(folder, lambda program: name_layers(program, _dtype(choice)))
        module = _optimize(ipex, program, choice)
        return ModuleGraph(module, signature, tuning, keep_layout=choice.channels_last)


class Hidden(nn.Module):
    """A layer hidden from the extension's search for modules, so that it stays in float32."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._hidden = (layer.requires_grad_(False),)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        output: Tensor = self._hidden[0](x)
        return output


class TraceableLayer(nn.Module):
    """A quantised layer in the operators that the extension's graph fuser looks for in a trace."""

    def __init__(self, layer: QuantizedLayer) -> None:
        super().__init__()
        scales = layer.scales.view(-1, *[1] * (layer.weight.ndim - 1))
        self.weight = nn.Buffer(layer.weight.float() * scales)
        self.scales, self.zeros, self.bias = layer.scales, layer.zeros, layer.bias
        self.scale, self.zero_point, self.conv = layer.scale, layer.zero_point, layer.conv

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output for rounded inputs and weights."""
        x = torch.quantize_per_tensor(x, self.scale, self.zero_point, torch.quint8).dequantize()
        weight = torch.quantize_per_channel(self.weight, self.scales, self.zeros, 0, torch.qint8).dequantize()
        if self.conv is None:
            return functional.linear(x, weight, self.bias)
        return functional.conv2d(x, weight, self.bias, *self.conv)


def load_extension() -> Any:
    """Return the imported extension.

    Raises:
        MissingDependencyError: it is not installed, or does not match the installed torch.
    """
    found = {name: installed_version(name) for name in _PACKAGES}
    if not all(text.split("+")[0].startswith(f"{_RELEASE}.") for text in found.values()):
        have = ", ".join(f"{name} {text or 'is not installed'}" for name, text in found.items())
        raise MissingDependencyError(
            f"Runtime 'ipex' needs intel-extension-for-pytorch {_RELEASE} with torch {_RELEASE}; here: {have}. "
            "Run, in an environment of its own: pip install 'boxwright[ipex]'"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module("intel_extension_for_pytorch")


def name_layers(program: torch.fx.GraphModule, dtype: torch.dtype) -> None:
    """Turn convolutions and linear operators with weights of a type into modules, which the extension looks for."""
    graph = program.graph
    for number, node in enumerate(list(graph.nodes)):
        if node.target not in (torch.ops.aten.conv2d.default, torch.ops.aten.linear.default):
            continue
        weight, bias = (_tensor(program, a) for a in (*node.args, None)[1:3])
        if weight is None or weight.dtype != dtype:  # computed, not a parameter; or kept in float32
            continue
        program.add_submodule(f"layer_{number}", _make_layer(weight, bias, node))
        with graph.inserting_before(node):
            new = graph.call_module(f"layer_{number}", (node.args[0],))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    program.recompile()


def _optimize(ipex: Any, module: nn.Module, choice: Choice) -> nn.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimized: nn.Module = ipex.optimize(
                module.eval(), dtype=_dtype(choice), inplace=True, conv_bn_folding=False
            )
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise ConversionError(f"The extension can't optimise the model: {first_line(error)}") from error
    return optimized


def _dtype(choice: Choice) -> torch.dtype:
    return torch.bfloat16 if choice.precision is Precision.BF16 else torch.float32


def _make_layer(weight: Tensor, bias: Tensor | None, node: torch.fx.Node) -> nn.Module:
    outputs, inputs, *size = weight.shape
    layer: nn.Linear | nn.Conv2d
    if not size:
        layer = nn.Linear(inputs, outputs, bias=bias is not None, dtype=weight.dtype)
    else:
        stride, padding, dilation, groups = conv_numbers(node)
        layer = nn.Conv2d(
            inputs * groups,
            outputs,
            (size[0], size[1]),
            stride=tuple(stride),
            padding=tuple(padding),
            dilation=tuple(dilation),
            groups=groups,
            bias=bias is not None,
            dtype=weight.dtype,
        )
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None and layer.bias is not None:
            layer.bias.copy_(bias)
    return layer


def _tensor(program: torch.fx.GraphModule, node: Any) -> Tensor | None:
    return constant(program, node) if isinstance(node, torch.fx.Node) and node.op == "get_attr" else None
