"""oneDNN's int8 kernels for the quantised layers of a loaded program, with activations and rounding fused in."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

import boxwright.runtimes.quantized  # noqa: F401  registers the operators quantized_decomposed::*
from boxwright.runtimes.fused import ACTIVATIONS, constant, conv_numbers

_ATEN = torch.ops.aten
_QUANTIZED = torch.ops.quantized_decomposed


class Int8Layer(nn.Module):
    """What both kinds of layers share; they return float, or uint8 if only int8 layers read the output."""

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
    """A linear layer on an int8 kernel; its inputs are already rounded."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        # fmt: off
        return torch.ops.onednn.qlinear_pointwise(  # type: ignore[no-any-return]
            x, self.scale, self.zero_point, self.packed, self.scales, self.zeros, self.bias,
            self.output_scale, self.output_zero, self.dtype, self.activation, [], "",
        )
        # fmt: on


class Int8Conv(Int8Layer):
    """A convolution on an int8 kernel; its inputs are already rounded."""

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


class Rounding(nn.Module):
    """Float values to uint8 steps."""

    def __init__(self, scale: float, zero_point: int) -> None:
        super().__init__()
        self.inverse = 1 / scale
        self.offset = nn.Buffer(torch.tensor(zero_point + 0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the steps: half a step is added, because the conversion truncates."""
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
            # The kernels return images channels last, where some views fail.
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
    if len(users) == 1 and users[0].target in ACTIVATIONS:
        last, activation = users[0], ACTIVATIONS[users[0].target]
    roundings = [n for n in last.users if n.target is _QUANTIZED.quantize_per_tensor.default]
    steps: set[Any] = {(n.args[1], n.args[2]) for n in roundings}
    output = next(iter(steps)) if len(steps) == 1 and len(roundings) == len(last.users) else None
    values, scales, bias = (constant(module, n) for n in (weight.args[0], weight.args[1], node.args[2]))
    if len(values) != len(scales) or len(values) != len(bias):
        raise ValueError("an int8 layer has not one scale and one bias per output channel")  # kernels don't check
    layer: Int8Layer
    if node.target is _ATEN.linear.default:
        packed = torch.ops.onednn.qlinear_prepack(values, None)
        layer = Int8Linear((scale, zero_point), packed, scales, bias, activation, output)
    else:
        stride, padding, dilation, groups = conv_numbers(node)
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
        module.graph.erase_node(last)  # it may be in place, which dead code elimination keeps
    module.graph.erase_node(node)
