"""What an ONNX file weighs."""

from math import prod
from pathlib import Path

import onnx

from boxwright.recipes.info import Cost


def measure_cost(path: Path) -> Cost:
    """Return the number of weights in the file; its FLOPs are not counted."""
    graph = onnx.load(path, load_external_data=False).graph
    return Cost(parameters=sum(prod(t.dims) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT))
