"""Layers put on oneDNN's kernels with the activations behind them fused in, in int8 (rounding too) and in float."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # registers the operators quantized_decomposed::*
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from boxwright.runtimes.fold import find_pairs, set_module

_ATEN = torch.ops.aten
_QUANTIZED = torch.ops.quantized_decomposed
_ACTIVATIONS = {
    _ATEN.silu.default: "swish",
    _ATEN.silu_.default: "swish",
    _ATEN.relu.default: "relu",
    _ATEN.relu_.default: "relu",
}
_MODULES: dict[type[nn.Module], str] = {nn.SiLU: "swish", nn.ReLU: "relu"}


class Int8Layer(nn.Module):
    """What both kinds of layers have; they give float, or uint8 where int8 layers alone take their output."""

    def __init__(
        self,
        source: tuple[float, int],
        packed: Tensor,
        scales: Tensor,
        bias: Tensor,
        activation: str,
        output: tuple[float, int] | None,
    ) -> None:
        super().__init__()
        self.scale, self.zero_point = source
        self.activation = activation
        self.output_scale, self.output_zero = output or (1.0, 0)
        self.dtype = torch.float32 if output is None else torch.uint8
        self.packed = nn.Buffer(packed, persistent=False)
        self.scales = nn.Buffer(scales, persistent=False)
        self.zeros = nn.Buffer(torch.zeros(len(scales), dtype=torch.int32), persistent=False)
        self.bias = nn.Buffer(bias, persistent=False)


class Int8Linear(Int8Layer):
    """A linear layer on an int8 kernel; for inputs that are rounded already."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        # fmt: off
        return torch.ops.onednn.qlinear_pointwise(  # type: ignore[no-any-return]
            x, self.scale, self.zero_point, self.packed, self.scales, self.zeros, self.bias,
            self.output_scale, self.output_zero, self.dtype, self.activation, [], "",
        )
        # fmt: on


class Int8Conv(Int8Layer):
    """A convolution on an int8 kernel; for inputs that are rounded already."""

    def __init__(self, *args: Any, stride: list[int], padding: list[int], dilation: list[int], groups: int) -> None:
        super().__init__(*args)
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        # fmt: off
        return torch.ops.onednn.qconv_pointwise(  # type: ignore[no-any-return]
            x, self.scale, self.zero_point, self.packed, self.scales, self.zeros, self.bias,
            self.stride, self.padding, self.dilation, self.groups,
            self.output_scale, self.output_zero, self.dtype, self.activation, [], "",
        )
        # fmt: on


class FusedConv(nn.Module):
    """A convolution and its activation on one float kernel: one pass over memory, rounded once."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str, numbers: Sequence[Any]) -> None:
        super().__init__()
        self.weight = nn.Buffer(weight)
        self.bias = nn.Buffer(torch.zeros(len(weight), dtype=weight.dtype) if bias is None else bias)
        self.activation = activation
        stride, padding, dilation, self.groups = numbers
        self.stride, self.padding, self.dilation = list(stride), list(padding), list(dilation)

    def pack(self, source: Any) -> None:
        """Lay the weights as the kernel wants them for the images that this node of a program gives."""
        value = source.meta.get("val")
        if value is None:
            return
        shape = [n if isinstance(n, int) else 1 for n in value.shape]  # a free batch: any packing is right, 1 is usual
        self.weight = torch.ops.mkldnn._reorder_convolution_weight(
            self.weight, self.padding, self.stride, self.dilation, self.groups, shape
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return activation(conv(x))."""
        # fmt: off
        return torch.ops.mkldnn._convolution_pointwise(  # type: ignore[no-any-return]
            x, self.weight, self.bias, self.padding, self.stride, self.dilation, self.groups, self.activation, [], "",
        )
        # fmt: on


class Rounding(nn.Module):
    """Float values to uint8 steps."""

    def __init__(self, scale: float, zero_point: int) -> None:
        super().__init__()
        self.inverse = 1 / scale
        self.offset = nn.Buffer(torch.tensor(zero_point + 0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the steps: half a step is added, and the conversion cuts what is behind the point."""
        return torch.add(self.offset, x, alpha=self.inverse).clamp_(0, 255).to(torch.uint8)


def lower_to_onednn(module: GraphModule) -> int:
    """Put every quantised layer of a loaded program on an int8 kernel, in place, and return how many there are."""
    graph = module.graph
    count = 0
    for node in list(graph.nodes):
        if node.target in (_ATEN.conv2d.default, _ATEN.linear.default) and _is_quantized(node):
            _lower(module, node, count)
            count += 1
        elif node.target is _ATEN.view.default:
            # The kernels give images channels last, where not every view goes.
            node.target = _ATEN.reshape.default
    graph.eliminate_dead_code()
    for number, node in enumerate(list(graph.nodes)):
        if node.target is _QUANTIZED.quantize_per_tensor.default:
            name = f"rounding_{number}"
            module.add_submodule(name, Rounding(node.args[1], node.args[2]))
            with graph.inserting_before(node):
                new = graph.call_module(name, (node.args[0],))
            node.replace_all_uses_with(new)
            graph.erase_node(node)
    graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.recompile()
    return count


def can_fuse(dtype: torch.dtype) -> bool:
    """Return whether this machine has oneDNN kernels for a float format."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not (available and hasattr(torch.ops.mkldnn, "_convolution_pointwise")):
        return False
    return dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def fuse_activations(module: nn.Module, example: Sequence[Tensor]) -> int:
    """Fuse activation modules into the convolutions before them, in place; return how many.

    A run of the example shows which convolution's output goes into an activation and nowhere else.
    """
    pairs = find_pairs(module, example, lambda first, second: _fits(first) and type(second) in _MODULES)
    for first, second in pairs:
        conv = module.get_submodule(first)
        assert isinstance(conv, nn.Conv2d)
        numbers = (conv.stride, conv.padding, conv.dilation, conv.groups)
        bias = None if conv.bias is None else conv.bias.detach()
        activation = _MODULES[type(module.get_submodule(second))]
        set_module(module, first, FusedConv(conv.weight.detach(), bias, activation, numbers))
        set_module(module, second, nn.Identity())
    return len(pairs)


def fuse_program(program: GraphModule) -> int:
    """Fuse activations into the convolutions of a loaded program, in place; return how many."""
    graph, count = program.graph, 0
    for node in list(graph.nodes):
        users = list(node.users)
        if node.target is not _ATEN.conv2d.default or len(users) != 1 or users[0].target not in _ACTIVATIONS:
            continue
        tensors = [a for a in node.args[1:3] if a is not None]
        if not all(isinstance(a, Node) and a.op == "get_attr" for a in tensors):
            continue
        weight, *rest = (_constant(program, a) for a in tensors)
        if weight.dtype not in (torch.float32, torch.bfloat16) or not can_fuse(weight.dtype):
            continue
        numbers = _conv_numbers(node)
        if any(isinstance(n, str) for n in numbers):
            continue
        name, last = f"fused_{count}", users[0]
        layer = FusedConv(weight, rest[0] if rest else None, _ACTIVATIONS[last.target], numbers)
        layer.pack(node.args[0])
        program.add_submodule(name, layer)
        with graph.inserting_after(last):
            new = graph.call_module(name, (node.args[0],))
        last.replace_all_uses_with(new)
        graph.erase_node(last)
        graph.erase_node(node)
        count += 1
    for node in graph.nodes:
        if count and node.target is _ATEN.view.default:
            node.target = _ATEN.reshape.default  # the kernels may give images channels last, where not every view goes
    graph.eliminate_dead_code()
    program.recompile()
    return count


def _fits(part: nn.Module) -> bool:
    return type(part) is nn.Conv2d and part.padding_mode == "zeros" and not isinstance(part.padding, str)


def _conv_numbers(node: Node) -> list[Any]:
    """Return stride, padding, dilation and groups of a convolution."""
    defaults: list[Any] = [[1, 1], [0, 0], [1, 1], 1]
    given: list[Any] = [list(a) if isinstance(a, list | tuple) else a for a in node.args[3:]]
    return given + defaults[len(given) :]


def _is_quantized(node: Node) -> bool:
    x, weight = node.args[:2]
    return (
        isinstance(x, Node)
        and isinstance(weight, Node)
        and x.target is _QUANTIZED.dequantize_per_tensor.default
        and weight.target is _QUANTIZED.dequantize_per_channel.default
    )


def _lower(module: GraphModule, node: Node, number: int) -> None:
    x, weight = node.args[:2]
    assert isinstance(x, Node)
    assert isinstance(weight, Node)
    numbers: Any = x.args
    rounded, scale, zero_point = numbers[:3]
    last, activation = node, "none"
    users = list(node.users)
    if len(users) == 1 and users[0].target in _ACTIVATIONS:
        last, activation = users[0], _ACTIVATIONS[users[0].target]
    roundings = [n for n in last.users if n.target is _QUANTIZED.quantize_per_tensor.default]
    steps: set[Any] = {(n.args[1], n.args[2]) for n in roundings}
    output = next(iter(steps)) if len(steps) == 1 and len(roundings) == len(last.users) else None
    values, scales, bias = (_constant(module, n) for n in (weight.args[0], weight.args[1], node.args[2]))
    layer: Int8Layer
    if node.target is _ATEN.linear.default:
        packed = torch.ops.onednn.qlinear_prepack(values, None)
        layer = Int8Linear((scale, zero_point), packed, scales, bias, activation, output)
    else:
        stride, padding, dilation, groups = _conv_numbers(node)
        packed = torch.ops.onednn.qconv_prepack(
            values, scales, scale, zero_point, stride, padding, dilation, groups, None
        )
        common = ((scale, zero_point), packed, scales, bias, activation, output)
        layer = Int8Conv(*common, stride=stride, padding=padding, dilation=dilation, groups=groups)
    name = f"int8_{number}"
    module.add_submodule(name, layer)
    with module.graph.inserting_after(last):
        new = module.graph.call_module(name, (rounded,))
    last.replace_all_uses_with(new)
    if output is not None:
        for rounding in roundings:
            rounding.replace_all_uses_with(new)
            module.graph.erase_node(rounding)
    if last is not node:
        module.graph.erase_node(last)  # it may change its input in place, so nothing else would remove it
    module.graph.erase_node(node)


def _constant(module: GraphModule, node: Any) -> Tensor:
    value: Tensor = operator.attrgetter(node.target)(module)
    return value.detach()
