"""A detector that fits on one page: it finds 8-pixel squares of pure red, green or blue in the network's input.

`ToySession` is written in numpy, `save_toy_onnx` writes the same as an ONNX file. Both need no torch, and what they
find can be told by hand.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from support.scenes import CELL, NAMES

from boxwright.core.spec import OutputForm, Spec

# Rows: how far a BGR pixel is pure red, green, blue.
_PURE = np.array([[-1, -1, 1], [-1, 1, -1], [1, -1, -1]], np.float32)
_STEEP, _BIAS = 0.2, 30.0


def toy_spec(**changes: Any) -> Spec:
    """Return what the toy says of itself."""
    return Spec(**{"names": NAMES, "size_hw": (64, 64)} | changes)


class ToySession:
    """The toy behind the session seam; it keeps the inputs that it was given."""

    def __init__(self, spec: Spec | None = None) -> None:
        self.spec = spec or toy_spec()
        self.inputs: list[NDArray[np.float32]] = []
        self.closed = False

    def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        self.inputs.append(images)
        height, width = self.spec.size_hw
        cells = images.reshape(len(images), 3, height // CELL, CELL, width // CELL, CELL).mean(axis=(3, 5))
        pure = np.einsum("kc,bchw->bhwk", _PURE, cells).reshape(len(images), -1, 3).clip(0)
        out = np.zeros((len(images), self.spec.num_anchors, 8), np.float32)
        out[:, :, :2] = 0.5
        out[:, :, 4:] = -_BIAS
        out[:, : pure.shape[1], 4] += _STEEP * pure.sum(axis=2)
        out[:, : pure.shape[1], 5:] += _STEEP * pure
        return out

    def close(self) -> None:
        self.closed = True


def save_toy_onnx(
    path: Path,
    *,
    form: OutputForm = "raw",
    size_hw: tuple[int, int] = (64, 64),
    batch: int | None = None,
    free_size: bool = False,
    twins: bool = False,
    spec: Spec | None = None,
) -> Path:
    """Write the toy as ONNX.

    Args:
        path: the file to write.
        form: how far the outputs are on their way to boxes and scores.
        size_hw: input size.
        batch: a fixed batch size, or None for any.
        free_size: do not name the input size in the file, though only `size_hw` works.
        twins: what is found in the second cell of the first row gets the box of the first cell.
        spec: a description to store in the file as our own exports do.
    """
    rows, columns = size_hw[0] // CELL, size_hw[1] // CELL
    all_rows = toy_spec(size_hw=size_hw).num_anchors
    # Objectness is the sum of the three, so the second layer has four outputs.
    second = _STEEP * np.array([[1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32)
    rest = np.full((1, all_rows - rows * columns, 4), -_BIAS, np.float32)
    boxes = np.tile(np.array([0.5, 0.5, 0, 0], np.float32), (1, all_rows, 1))
    if twins:
        boxes[0, 1, 0] = -0.5
    if form == "decoded":
        boxes = _decode(size_hw)[None]
    constants = {
        "pure": _PURE[:, :, None, None],
        "second": second[:, :, None, None],
        "bias": np.full(4, -_BIAS, np.float32),
        "rest": rest,
        "toy_boxes": boxes,
        "flat": np.array([0, 4, -1], np.int64),
        "ones": np.array([1, 1], np.int64),
    }
    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("AveragePool", ["images"], "cells", {"kernel_shape": [CELL, CELL], "strides": [CELL, CELL]}),
        ("Conv", ["cells", "pure"], "purity", {}),
        ("Relu", ["purity"], "clipped", {}),
        ("Conv", ["clipped", "second", "bias"], "map", {}),
        ("Reshape", ["map", "flat"], "lines", {}),
        ("Transpose", ["lines"], "first", {"perm": [0, 2, 1]}),
        ("Shape", ["images"], "count", {"start": 0, "end": 1}),
        ("Concat", ["count", "ones"], "times", {"axis": 0}),
        ("Tile", ["rest", "times"], "others", {}),
        ("Tile", ["toy_boxes", "times"], "all_boxes", {}),
        ("Concat", ["first", "others"], "logits", {"axis": 1}),
        ("Identity" if form == "raw" else "Sigmoid", ["logits"], "toy_scores", {}),
        ("Concat", ["all_boxes", "toy_scores"], "output", {"axis": 2}),
    ]
    shape = [batch or "batch", 3, *(("height", "width") if free_size else size_hw)]
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, [output], **options) for kind, inputs, output, options in steps],
        "toy",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [batch or "batch", None, 8])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    save_graph(path, graph, spec)
    return path


def save_graph(path: Path, graph: onnx.GraphProto, spec: Spec | None = None) -> None:
    """Write a graph as an ONNX file that every ONNX Runtime in use reads."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    if spec is not None:
        helper.set_model_props(model, {"boxwright": json.dumps(spec.to_dict())})
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def _decode(size_hw: tuple[int, int]) -> NDArray[np.float32]:
    """Return centre and size in pixels of every cell of the three levels."""
    boxes = []
    for stride in (8, 16, 32):
        y, x = np.mgrid[: size_hw[0] // stride, : size_hw[1] // stride]
        centres = np.stack((x.ravel() + 0.5, y.ravel() + 0.5), axis=1) * stride
        boxes.append(np.concatenate((centres, np.full((len(centres), 2), stride)), axis=1))
    return np.concatenate(boxes).astype(np.float32)
