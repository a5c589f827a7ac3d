"""The layers of an ONNX graph that can be quantised, and the writing of a changed graph."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from boxwright.core.errors import UsageError, suggest

_HEAVY = ("Conv", "MatMul", "Gemm")
_MOVES = ("Transpose", "Reshape", "Concat", "Flatten", "Squeeze", "Unsqueeze", "Identity")
Weights = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Layer:
    """A node with a constant weight."""

    node: onnx.NodeProto
    weight: Weights
    bias: Weights | None

    @property
    def module(self) -> str:
        """The torch module that the node came from, as the export named it."""
        return str(self.node.name).partition("/")[0]

    @property
    def axis(self) -> int:
        """The weight's axis of output channels."""
        rows = self.node.op_type == "Conv" or (self.node.op_type == "Gemm" and attribute(self.node, "transB", 0))
        return 0 if rows else self.weight.ndim - 1

    @property
    def depthwise(self) -> bool:
        """Whether every output channel sees one input channel alone."""
        group: int = attribute(self.node, "group", 1)
        return self.node.op_type == "Conv" and group > 1 and self.weight.shape[1] == 1

    def rounded(self, bits: int) -> tuple[NDArray[np.int8], Weights]:
        """Return the weights as whole numbers, and the scale of each output channel."""
        top = 2 ** (bits - 1) - 1
        others = tuple(a for a in range(self.weight.ndim) if a != self.axis)
        scales = np.abs(self.weight).max(axis=others) / top
        scales = np.where(scales > 0, scales, 1.0).astype(np.float32)
        return np.clip(np.rint(self.weight / self.along(scales)), -top, top).astype(np.int8), scales

    def along(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return one value a channel in a shape that goes with the weight."""
        shape = [1] * self.weight.ndim
        shape[self.axis] = -1
        return values.reshape(shape)


class Rewriter:
    """The nodes and constants of the new graph, in the old one's order."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.nodes: list[onnx.NodeProto] = []
        self._constants = {t.name: t for t in model.graph.initializer}

    def constant(self, name: str, value: Any, dtype: Any) -> str:
        """Add a constant and return its name."""
        self._constants[name] = numpy_helper.from_array(np.asarray(value, dtype), name)
        return name

    def node(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **options: Any) -> str:
        """Add a node and return its first output."""
        self.nodes.append(helper.make_node(kind, list(inputs), list(outputs), name=f"{outputs[0]}/{kind}", **options))
        return outputs[0]

    def copy(self, node: onnx.NodeProto, inputs: Sequence[str], output: str) -> None:
        """Add a node that does the same with other inputs, under another name of its output."""
        new = onnx.NodeProto()
        new.CopyFrom(node)
        del new.input[:]
        new.input.extend(inputs)
        new.output[0] = output
        self.nodes.append(new)

    def round(self, name: str, target: str, scale: float, zero: int) -> str:
        """Put a tensor through 8-bit levels."""
        steps = [
            self.constant(f"{target}/scale", scale, np.float32),
            self.constant(f"{target}/zero", zero, np.uint8),
        ]
        levels = self.node("QuantizeLinear", [name, *steps], [f"{target}/levels"])
        return self.node("DequantizeLinear", [levels, *steps], [target])

    def save(self, path: Path) -> None:
        """Write the graph, without constants that nobody uses any more."""
        graph = self.model.graph
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.extend(self.nodes)
        used = {name for node in self.nodes for name in node.input}
        graph.initializer.extend(t for name, t in self._constants.items() if name in used)
        onnx.save(self.model, path)


def choose_layers(model: onnx.ModelProto, keep_float: Sequence[str]) -> tuple[list[Layer], dict[str, list[str]]]:
    """Return the layers to quantise, and the modules that stay in float by reason.

    Raises:
        UsageError: a name in `keep_float` is no layer of the model nor a module with layers in it.
    """
    layers = _find_layers(model.graph)
    modules = {layer.module for layer in layers}
    for name in keep_float:
        if not any(_is_inside(module, name) for module in modules):
            raise UsageError(f"keep_float names {name!r}, which is no layer of this model.{suggest(name, modules)}")
    users, outputs = find_users(model.graph), {o.name for o in model.graph.output}
    chosen: list[Layer] = []
    first = _untouched(model.graph)
    kept: dict[str, list[str]] = {"asked for": [], "depthwise": [], "first": [], "last": []}
    for layer in layers:
        if any(_is_inside(layer.module, name) for name in keep_float):
            kept["asked for"].append(layer.module)
        elif layer.depthwise:
            kept["depthwise"].append(layer.module)
        elif layer.node.input[0] in first:
            kept["first"].append(layer.module)
        elif _is_last(layer.node.output[0], users, outputs):
            kept["last"].append(layer.module)
        else:
            chosen.append(layer)
    return chosen, kept


def _find_layers(graph: onnx.GraphProto) -> list[Layer]:
    constants = {t.name: t for t in graph.initializer}
    found = []
    for node in graph.node:
        if node.op_type not in _HEAVY or node.input[0] in constants or not set(node.input[1:]) <= set(constants):
            continue
        weight, *bias = (numpy_helper.to_array(constants[name]) for name in node.input[1:])
        plain = node.op_type != "Gemm" or (
            not attribute(node, "transA", 0) and attribute(node, "alpha", 1.0) == attribute(node, "beta", 1.0) == 1.0
        )
        if weight.dtype == np.float32 and weight.ndim >= 2 and plain:
            found.append(Layer(node, weight, bias[0] if bias else None))
    return found


def find_users(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    """Return the nodes that read each tensor."""
    users: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    return users


def lowest_used(name: str, users: dict[str, list[onnx.NodeProto]]) -> float:
    """Return the value below which all values of a tensor mean the same to whoever reads it."""
    kinds = sorted(node.op_type for node in users.get(name, ()))
    if kinds == ["Relu"]:
        return 0.0
    # At -8, SiLU gives -0.003, and less below.
    return -8.0 if kinds in (["QuickGelu"], ["Mul", "Sigmoid"]) else -np.inf


def _untouched(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors that hold the graph's inputs, moved or scaled at most."""
    found = {i.name for i in graph.input}
    constants = {t.name for t in graph.initializer}
    for node in graph.node:
        if (
            node.op_type in (*_MOVES, "Slice", "Cast", "Add", "Sub", "Mul", "Div")
            and set(node.input) <= found | constants
        ):
            found.update(node.output)
    return found


def _is_last(name: str, users: dict[str, list[onnx.NodeProto]], outputs: set[str]) -> bool:
    """Return whether nothing is computed with a tensor any more."""
    following = users.get(name, [])
    moved = all(n.op_type in _MOVES and _is_last(n.output[0], users, outputs) for n in following)
    return moved and (name in outputs or bool(following))


def _is_inside(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """Return what a node says, or the default of its operator."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
