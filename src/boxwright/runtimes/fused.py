"""Convolutions and the activations after them on one oneDNN kernel, in float32 and bf16."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from boxwright.runtimes.fold import find_pairs, set_module

_ATEN = torch.ops.aten
ACTIVATIONS = {
    _ATEN.silu.default: "swish",
    _ATEN.silu_.default: "swish",
    _ATEN.relu.default: "relu",
    _ATEN.relu_.default: "relu",
}
"""The kernels' names of activation operators."""
_MODULES: dict[type[nn.Module], str] = {nn.SiLU: "swish", nn.ReLU: "relu"}


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
        """Lay the weights as the kernel wants them for the images that this node of a program returns."""
        shape = source.meta.get("shape")
        if shape is None:
            return
        # With a free batch any packing is correct; 1 is usual.
        shape = [1 if n is None else n for n in shape]
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


def can_fuse(dtype: torch.dtype) -> bool:
    """Return whether this machine has oneDNN kernels for a float format."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not (available and hasattr(torch.ops.mkldnn, "_convolution_pointwise")):
        return False
    return dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def fuse_activations(module: nn.Module, example: Sequence[Tensor]) -> int:
    """Fuse activation modules into the convolutions before them, in place; return how many.

    A run of the example shows which convolution's output goes only into an activation.
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
    for last in list(graph.nodes):
        if last.target not in ACTIVATIONS:
            continue
        node: Any = last.args[0]
        if node.target is not _ATEN.conv2d.default or len(node.users) != 1:
            continue
        tensors: list[Any] = [a for a in node.args[1:3] if a is not None]
        if any(a.op != "get_attr" for a in tensors):
            continue
        weight, numbers = constant(program, tensors[0]), conv_numbers(node)
        if weight.dtype not in (torch.float32, torch.bfloat16) or not can_fuse(weight.dtype):
            continue
        if any(isinstance(n, str) for n in numbers):
            continue
        bias = constant(program, tensors[1]) if len(tensors) > 1 else None
        layer = FusedConv(weight, bias, ACTIVATIONS[last.target], numbers)
        layer.pack(node.args[0])
        program.add_submodule(f"fused_{count}", layer)
        with graph.inserting_after(last):
            new = graph.call_module(f"fused_{count}", (node.args[0],))
        last.replace_all_uses_with(new)
        graph.erase_node(last)
        graph.erase_node(node)
        count += 1
    for node in graph.nodes:
        if count and node.target is _ATEN.view.default:
            node.target = _ATEN.reshape.default  # the kernels may return images channels last, where some views fail
    graph.eliminate_dead_code()
    program.recompile()
    return count


def _fits(part: nn.Module) -> bool:
    return type(part) is nn.Conv2d and part.padding_mode == "zeros" and not isinstance(part.padding, str)


def conv_numbers(node: Node) -> list[Any]:
    """Return stride, padding, dilation and groups of a convolution."""
    defaults: list[Any] = [[1, 1], [0, 0], [1, 1], 1]
    given: list[Any] = [list(a) if isinstance(a, list | tuple) else a for a in node.args[3:]]
    return given + defaults[len(given) :]


def constant(module: GraphModule, node: Any) -> Tensor:
    """Return the weight that a node of a program reads."""
    value: Tensor = operator.attrgetter(node.target)(module)
    return value.detach()
