"""Non-maximum suppression inside an ONNX file, with the rules of our own postprocessing."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SETTINGS_KEY = "boxwright_nms"
"""Where a file stores the thresholds of its suppression, as JSON."""


def suppress_file(path: Path, target: Path, *, conf: float, nms: float, max_boxes: int) -> None:
    """Write a file of decoded outputs with suppression at its end (see `add_suppression`)."""
    model = add_suppression(onnx.load(path), conf=conf, nms=nms, max_boxes=max_boxes)
    entry = model.metadata_props.add()
    entry.key, entry.value = SETTINGS_KEY, json.dumps({"conf": conf, "nms": nms, "max_boxes": max_boxes})
    onnx.checker.check_model(model)
    onnx.save(model, target)


def add_suppression(model: onnx.ModelProto, *, conf: float, nms: float, max_boxes: int) -> onnx.ModelProto:
    """Return the model with its decoded output (B, A, 5 + C) replaced by the boxes left after suppression.

    A place has one class, its best, and the score objectness times class. Boxes of one class suppress each other where
    they overlap (IoU) by more than `nms`. The outputs, best score first, filled up with zeros and class -1:
    `num` (B,) int64, `boxes` (B, K, 4) corners in pixels of the input, `scores` (B, K), `classes` (B, K) int64,
    K = `max_boxes`, or the number of places if that is less.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    (output,) = result.graph.output
    graph = _Builder(result.graph)
    centres = graph("Slice", output.name, _ints(0), _ints(4), _ints(2))
    objectness = graph("Slice", output.name, _ints(4), _ints(5), _ints(2))
    classes = graph("Slice", output.name, _ints(5), _ints(2**31), _ints(2))
    best = graph("ReduceMax", classes, _ints(2), keepdims=1)  # (B, A, 1)
    scores = graph("Mul", objectness, best)  # (B, A, 1)
    class_ids = graph("ArgMax", classes, axis=2, keepdims=1)  # (B, A, 1)
    # A score for its own class, 0 for the others: (B, C, A) as the operator expects it.
    number = graph("Shape", classes, start=2, end=3)  # (1,)
    every = graph("Range", np.int64(0), graph("Squeeze", number, _ints(0)), np.int64(1))  # (C,)
    own = graph("Equal", class_ids, graph("Unsqueeze", every, _ints(0, 1)))  # (B, A, C)
    by_class = graph("Transpose", graph("Where", own, scores, np.float32(0)), perm=[0, 2, 1])
    # The operator keeps scores above its threshold; ours keep those equal to it too.
    least = np.array([np.nextafter(np.float32(conf), np.float32(-1))], np.float32) if conf > 0 else np.zeros(1, "f")
    picked = graph(
        "NonMaxSuppression", centres, by_class, _ints(2**31 - 1), np.array([nms], np.float32), least, center_point_box=1
    )  # (N, 3): image, class, place
    where = graph("Gather", picked, _ints(0, 2), axis=1)  # (N, 2)
    flat = graph("Squeeze", scores, _ints(2))  # (B, A)
    nothing = graph("Mul", flat, np.float32(0))
    left = graph("ScatterND", nothing, where, graph("GatherND", flat, where))  # (B, A)
    places = graph("Shape", flat, start=1, end=2)
    count = graph("Min", places, _ints(max_boxes))
    top, index = graph.several("TopK", [left, count], 2, axis=1)  # (B, K) each
    found = graph("Greater", top, np.float32(0))
    ones = graph("Cast", found, to=TensorProto.INT64)
    graph.output("num", TensorProto.INT64, ["batch"], "ReduceSum", ones, _ints(1), keepdims=0)
    each = graph("Unsqueeze", index, _ints(2))  # (B, K, 1)
    kept = graph("GatherND", centres, each, batch_dims=1)  # (B, K, 4)
    middle = graph("Slice", kept, _ints(0), _ints(2), _ints(2))
    half = graph("Mul", graph("Slice", kept, _ints(2), _ints(4), _ints(2)), np.float32(0.5))
    corners = graph("Concat", graph("Sub", middle, half), graph("Add", middle, half), axis=2)
    is_box = graph("Unsqueeze", found, _ints(2))  # (B, K, 1)
    graph.output("boxes", TensorProto.FLOAT, ["batch", "found", 4], "Where", is_box, corners, np.float32(0))
    graph.output("scores", TensorProto.FLOAT, ["batch", "found"], "Identity", top)
    labels = graph("GatherND", graph("Squeeze", class_ids, _ints(2)), each, batch_dims=1)
    graph.output("classes", TensorProto.INT64, ["batch", "found"], "Where", found, labels, np.int64(-1))
    result.graph.output.remove(output)
    return result


class _Builder:
    """Nodes that follow one another at the end of a graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self._count = 0

    def __call__(self, kind: str, *inputs: Any, **options: Any) -> str:
        """Add a node with one output and return the output's name; arrays become constants."""
        return self.several(kind, inputs, 1, **options)[0]

    def several(self, kind: str, inputs: Sequence[Any], outputs: int, **options: Any) -> list[str]:
        """Add a node and return the names of its outputs."""
        names = [f"{self._name(kind)}/{i}" for i in range(outputs)]
        self._add(kind, inputs, names, options)
        return names

    def output(self, name: str, kind_of_number: int, shape: list[Any], kind: str, *inputs: Any, **options: Any) -> None:
        """Add a node whose output is one of the graph's."""
        self._add(kind, inputs, [name], options)
        self.graph.output.append(helper.make_tensor_value_info(name, kind_of_number, shape))

    def _add(self, kind: str, inputs: Sequence[Any], outputs: list[str], options: dict[str, Any]) -> None:
        names = [i if isinstance(i, str) else self._constant(i) for i in inputs]
        self.graph.node.append(helper.make_node(kind, names, outputs, name=f"suppression/{outputs[0]}", **options))

    def _constant(self, value: Any) -> str:
        name = self._name("constant")
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"suppression/{kind}_{self._count}"


def _ints(*values: int) -> Any:
    return np.array(values, np.int64)
