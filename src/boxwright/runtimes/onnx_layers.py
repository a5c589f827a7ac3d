"""The layers of an ONNX graph that can be quantised, and a writer for the changed graph."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

_HEAVY = ("Conv", "MatMul", "Gemm")
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
        rows = self.node.op_type == "Conv" or (self.node.op_type == "Gemm" and _attribute(self.node, "transB", 0))
        return 0 if rows else self.weight.ndim - 1

    def rounded(self, bits: int) -> tuple[NDArray[np.int8], Weights]:
        """Return the weights as integers, and the scale of each output channel."""
        top = 2 ** (bits - 1) - 1
        others = tuple(a for a in range(self.weight.ndim) if a != self.axis)
        scales = np.abs(self.weight).max(axis=others, keepdims=True) / top
        scales = np.where(scales > 0, scales, 1.0).astype(np.float32)
        return np.clip(np.rint(self.weight / scales), -top, top).astype(np.int8), scales.reshape(-1)


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
        """Add a copy of a node with other inputs and another output."""
        new = onnx.NodeProto()
        new.CopyFrom(node)
        del new.input[:]
        new.input.extend(inputs)
        new.output[0] = output
        self.nodes.append(new)

    def round(self, name: str, target: str, scale: float, zero: int, dtype: Any = np.uint8) -> str:
        """Round a tensor to 8 bits and back."""
        steps = [
            self.constant(f"{target}/scale", scale, np.float32),
            self.constant(f"{target}/zero", zero, dtype),
        ]
        levels = self.node("QuantizeLinear", [name, *steps], [f"{target}/levels"])
        return self.node("DequantizeLinear", [levels, *steps], [target])

    def save(self, path: Path) -> None:
        """Write the graph without unused constants."""
        graph = self.model.graph
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.extend(self.nodes)
        used = {name for node in self.nodes for name in node.input}
        graph.initializer.extend(t for name, t in self._constants.items() if name in used)
        onnx.save(self.model, path)


def find_layers(graph: onnx.GraphProto) -> dict[str, Layer]:
    """Return the nodes with constant float weights that have an 8-bit form, by node name."""
    constants = {t.name: t for t in graph.initializer}
    found: dict[str, Layer] = {}
    for node in graph.node:
        if node.op_type not in _HEAVY or node.input[0] in constants or not set(node.input[1:]) <= set(constants):
            continue
        weight, *bias = (numpy_helper.to_array(constants[name]) for name in node.input[1:])
        plain = node.op_type != "Gemm" or (
            not _attribute(node, "transA", 0) and _attribute(node, "alpha", 1.0) == _attribute(node, "beta", 1.0) == 1.0
        )
        if weight.dtype == np.float32 and weight.ndim >= 2 and plain:
            found[node.name] = Layer(node, weight, bias[0] if bias else None)
    return found


def lowest_used(graph: onnx.GraphProto) -> dict[str, float]:
    """Return the value of each tensor below which all values have the same effect, where there is one."""
    users: dict[str, list[str]] = {}
    for node in graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node.op_type)
    # At -8, SiLU gives -0.003, and less below.
    lowest = {("Relu",): 0.0, ("QuickGelu",): -8.0, ("Mul", "Sigmoid"): -8.0}
    found = {name: lowest.get(tuple(sorted(kinds))) for name, kinds in users.items()}
    return {name: value for name, value in found.items() if value is not None}


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
