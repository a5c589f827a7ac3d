"""The ways to run a model on each accelerator, which are rows of the optimiser. It needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Way:
    """How one row converts a model.

    Attributes:
        runtime: a name of the catalogue.
        precision: the number format of the heavy layers.
        mode: the variant, where the runtime has several for one precision.
    """

    runtime: str
    precision: str
    mode: str = ""


WAYS: Mapping[str, Mapping[str, Way]] = MappingProxyType(
    {
        "cuda": {
            "cuda_graph_fp32": Way("graph", "fp32"),
            "cuda_graph_fp16": Way("graph", "fp16"),
            "cuda_graph_bf16": Way("graph", "bf16"),
            "compile_cuda_fp16": Way("compile", "fp16"),
            "compile_cuda_bf16": Way("compile", "bf16"),
            "onnxruntime_cuda_fp32": Way("onnxruntime", "fp32"),
            "onnxruntime_cuda_fp16": Way("onnxruntime", "fp16"),
            "tensorrt_fp16": Way("onnxruntime", "fp16", "tensorrt"),
            "tensorrt_int8": Way("onnxruntime", "int8", "tensorrt"),
        },
        "hpu": {
            "hpu_graph_fp32": Way("graph", "fp32"),
            "hpu_graph_bf16": Way("graph", "bf16"),
        },
    }
)
"""The rows of each device by their names."""
