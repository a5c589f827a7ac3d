"""The plug-ins that users choose by name: where each lives, which packages it needs, which extra installs them.

Nothing is imported until it is chosen: `load("runtime", "onnxruntime")` checks the packages, then imports the module.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from boxwright.core.errors import check_choice
from boxwright.core.packages import missing_packages, require


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of the catalogue.

    Attributes:
        target: "module:attribute".
        packages: what it imports besides Boxwright.
        extra: the extra of Boxwright that installs them.
    """

    target: str
    packages: tuple[str, ...] = ()
    extra: str = ""

    def missing(self) -> tuple[str, ...]:
        """Return the packages that are not installed."""
        return missing_packages(self.packages)


CATALOGUE: dict[str, dict[str, Entry]] = {
    "runtime": {
        "eager": Entry("boxwright.runtimes.eager:EagerRuntime", ("torch", "safetensors"), "train"),
        "jit": Entry("boxwright.runtimes.torchscript:JitRuntime", ("torch", "safetensors"), "train"),
        "compile": Entry("boxwright.runtimes.compiled:CompiledRuntime", ("torch", "safetensors"), "train"),
        "graph": Entry("boxwright.runtimes.graph:GraphRuntime", ("torch", "safetensors"), "train"),
        "int8": Entry("boxwright.runtimes.eager:Int8Runtime", ("torch", "safetensors"), "train"),
        "ipex": Entry(
            "boxwright.runtimes.ipex_:IpexRuntime", ("torch", "safetensors", "intel_extension_for_pytorch"), "ipex"
        ),
        "onnxruntime": Entry("boxwright.runtimes.onnxruntime_:OnnxRuntime", ("onnxruntime",), "onnx"),
        "openvino": Entry("boxwright.runtimes.openvino_:OpenvinoRuntime", ("openvino",), "openvino"),
    },
    "model": {
        name: Entry(f"boxwright.detector.yolox:{name}", ("torch",), "train")
        for name in ("yolox_nano", "yolox_tiny", "yolox_s", "yolox_m", "yolox_l", "yolox_x", "yolov3")
    },
    "device": {
        "cpu": Entry("boxwright.devices.cpu:CpuDevice", ("torch",), "train"),
        "cuda": Entry("boxwright.devices.cuda:CudaDevice", ("torch",), "train"),
        "hpu": Entry("boxwright.devices.hpu:HpuDevice", ("torch",), "train"),
    },
    "launcher": {
        "subprocess": Entry("boxwright.launchers.local:SubprocessLauncher", ("cloudpickle",), "train"),
        "spawn": Entry("boxwright.launchers.local:SpawnLauncher", ("cloudpickle",), "train"),
        "ray": Entry("boxwright.launchers.ray_:RayLauncher", ("ray", "cloudpickle"), "ray"),
        "spark": Entry("boxwright.launchers.spark_:SparkLauncher", ("pyspark", "cloudpickle"), "spark"),
    },
    # Clusters, and what runs the workers of a batch prediction on them.
    "engine": {
        "ray": Entry("boxwright.launchers.ray_:open_ray", ("ray", "cloudpickle"), "ray"),
        "spark": Entry("boxwright.launchers.spark_session:open_spark", ("pyspark", "cloudpickle"), "spark"),
    },
    "batch": {
        "local": Entry("boxwright.tasks.batch.local:run_parts", ("pyarrow",), "batch"),
        "ray": Entry("boxwright.tasks.batch.ray_:run_parts", ("ray", "pyarrow", "cloudpickle"), "ray"),
        "spark": Entry("boxwright.tasks.batch.spark_:run_parts", ("pyspark", "pyarrow", "cloudpickle"), "spark"),
    },
    "exporter": {
        "openvino": Entry("boxwright.runtimes.openvino_convert:convert", ("torch", "openvino"), "quantize"),
        "onnx": Entry("boxwright.runtimes.onnx_export:export_onnx", ("torch", "onnx", "onnxscript"), "export"),
        "tensorrt": Entry("boxwright.runtimes.onnxruntime_:build_engine", ("onnxruntime",), "onnx"),
    },
    "quantizer": {
        "openvino": Entry("boxwright.runtimes.openvino_quantize:quantize", ("torch", "openvino", "nncf"), "quantize"),
        "openvino_bf16": Entry("boxwright.runtimes.openvino_mixed:mix", ("torch", "openvino"), "quantize"),
        "onnx_qlinear": Entry("boxwright.runtimes.onnx_quantize:quantize_static", ("onnx", "onnxruntime"), "export"),
        "onnx_symmetric": Entry(
            "boxwright.runtimes.onnx_quantize:quantize_symmetric", ("onnx", "onnxruntime"), "export"
        ),
        "onnx_integer": Entry("boxwright.runtimes.onnx_quantize:quantize_dynamic", ("onnx", "onnxruntime"), "export"),
    },
}


def names(kind: str) -> tuple[str, ...]:
    """Return all names of one kind, in the order of the table."""
    return tuple(CATALOGUE[kind])


def find(kind: str, name: str) -> Entry:
    """Return the entry of a name.

    Raises:
        UsageError: there is no such name; the message suggests the nearest.
    """
    check_choice(kind, name, CATALOGUE[kind])
    return CATALOGUE[kind][name]


def load(kind: str, name: str) -> Any:
    """Import and return the plug-in of a name.

    Raises:
        UsageError: there is no such name.
        MissingDependencyError: a package it needs is not installed.
    """
    entry = find(kind, name)
    require(*entry.packages, extra=entry.extra, by=f"{kind.capitalize()} {name!r}")
    module, attribute = entry.target.split(":")
    return getattr(import_module(module), attribute)
