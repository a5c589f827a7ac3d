"""The one registry: what exists by name, where it lives, which packages it needs and which extra brings them.

Nothing is imported until it is chosen. `load("runtime", "onnxruntime")` checks the packages first.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from boxwright.core.errors import UsageError, suggest
from boxwright.core.packages import missing_packages, require


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name of the catalogue: `target` is "module:attribute"."""

    target: str
    packages: tuple[str, ...] = ()
    extra: str = ""

    def missing(self) -> tuple[str, ...]:
        """Return the packages that this entry needs and this Python does not have."""
        return missing_packages(self.packages)


def _yolox(function: str) -> Entry:
    return Entry(target=f"boxwright.detector.yolox:{function}", packages=("torch",), extra="train")


def _optimize(name: str) -> Entry:
    packages = ("torch", "safetensors", "cloudpickle", "hotcoco")
    return Entry(target=f"boxwright.tasks.optimize:{name}", packages=packages, extra="train")


CATALOGUE: dict[str, dict[str, Entry]] = {
    "runtime": {
        "eager": Entry(
            target="boxwright.runtimes.eager:EagerRuntime", packages=("torch", "safetensors"), extra="train"
        ),
        "jit": Entry(target="boxwright.runtimes.torchscript:JitRuntime", packages=("torch",), extra="train"),
        "compile": Entry(target="boxwright.runtimes.compiled:CompiledRuntime", packages=("torch",), extra="train"),
        "int8": Entry(target="boxwright.runtimes.int8_torch:Int8Runtime", packages=("torch",), extra="train"),
        "ipex": Entry(
            target="boxwright.runtimes.ipex_:IpexRuntime",
            packages=("torch", "intel_extension_for_pytorch"),
            extra="ipex",
        ),
        "onnxruntime": Entry(
            target="boxwright.runtimes.onnxruntime_:OnnxRuntime", packages=("onnxruntime",), extra="onnx"
        ),
        "openvino": Entry(
            target="boxwright.runtimes.openvino_:OpenvinoRuntime", packages=("openvino",), extra="openvino"
        ),
    },
    "model": {
        "yolox_nano": _yolox("yolox_nano"),
        "yolox_tiny": _yolox("yolox_tiny"),
        "yolox_s": _yolox("yolox_s"),
        "yolox_m": _yolox("yolox_m"),
        "yolox_l": _yolox("yolox_l"),
        "yolox_x": _yolox("yolox_x"),
        "yolov3": _yolox("yolov3"),
    },
    "device": {
        "cpu": Entry(target="boxwright.devices.cpu:CpuDevice", packages=("torch",), extra="train"),
        "cuda": Entry(target="boxwright.devices.cuda:CudaDevice", packages=("torch",), extra="train"),
        "hpu": Entry(target="boxwright.devices.hpu:HpuDevice", packages=("torch",), extra="train"),
    },
    "launcher": {
        "subprocess": Entry(
            target="boxwright.launchers.subprocess_:SubprocessLauncher", packages=("cloudpickle",), extra="train"
        ),
        "spawn": Entry(target="boxwright.launchers.spawn:SpawnLauncher", packages=("cloudpickle",), extra="train"),
        "ray": Entry(target="boxwright.launchers.ray_:RayLauncher", packages=("ray", "cloudpickle"), extra="ray"),
        "spark": Entry(
            target="boxwright.launchers.spark_:SparkLauncher", packages=("pyspark", "cloudpickle"), extra="spark"
        ),
    },
    "engine": {
        "ray": Entry(target="boxwright.launchers.ray_:open_ray", packages=("ray", "cloudpickle"), extra="ray"),
        "spark": Entry(
            target="boxwright.launchers.spark_session:open_spark", packages=("pyspark", "cloudpickle"), extra="spark"
        ),
    },
    "recipe": {
        "train": Entry(target="boxwright.tasks.train.run:train", packages=("torch", "safetensors"), extra="train"),
        "train_config": Entry(target="boxwright.tasks.train.config:TrainConfig", packages=("torch",), extra="train"),
        "take_settings": Entry(target="boxwright.tasks.train.store:take_settings", packages=("torch",), extra="train"),
        "optimize": _optimize("optimize"),
        "optimize_config": _optimize("OptimizeConfig"),
        "benchmark": Entry(target="boxwright.tasks.benchmark:benchmark", packages=("cloudpickle",), extra="train"),
        "export": Entry(target="boxwright.tasks.export:export", packages=("torch", "safetensors"), extra="train"),
        "export_config": Entry(
            target="boxwright.tasks.export:ExportConfig", packages=("torch", "safetensors"), extra="train"
        ),
        "export_suppression": Entry(
            target="boxwright.tasks.export_check:Suppression", packages=("torch", "safetensors"), extra="train"
        ),
        "batch": Entry(target="boxwright.tasks.batch.job:predict_in_batches", packages=("pyarrow",), extra="batch"),
        "batch_config": Entry(target="boxwright.tasks.batch.config:BatchConfig", packages=("pyarrow",), extra="batch"),
        "demo": Entry(target="boxwright.tasks.demo:run_demo", packages=("torch", "safetensors"), extra="train"),
    },
    # What runs the workers of a batch prediction.
    "batch": {
        "local": Entry(target="boxwright.tasks.batch.local:run_parts", packages=("pyarrow",), extra="batch"),
        "ray": Entry(
            target="boxwright.tasks.batch.ray_:run_parts", packages=("ray", "pyarrow", "cloudpickle"), extra="ray"
        ),
        "spark": Entry(
            target="boxwright.tasks.batch.spark_:run_parts",
            packages=("pyspark", "pyarrow", "cloudpickle"),
            extra="spark",
        ),
    },
    "opener": {
        # Weights only: something with torch must build the network around them.
        "checkpoint": Entry(
            target="boxwright.tasks.checkpoint:open_checkpoint", packages=("torch", "safetensors"), extra="train"
        ),
        "onnx": Entry(target="boxwright.tasks.onnx_file:open_onnx", packages=("onnxruntime",), extra="onnx"),
    },
    "measure": {
        "network_cost": Entry(target="boxwright.tasks.checkpoint:measure_cost", packages=("torch",), extra="train"),
        "onnx_cost": Entry(target="boxwright.tasks.onnx_file:measure_cost", packages=("onnx",), extra="export"),
    },
    "exporter": {
        "openvino": Entry(
            target="boxwright.runtimes.openvino_convert:convert", packages=("torch", "openvino"), extra="quantize"
        ),
        "onnx": Entry(
            target="boxwright.runtimes.export:export_onnx", packages=("torch", "onnx", "onnxscript"), extra="export"
        ),
        "tensorrt": Entry(target="boxwright.runtimes.tensorrt_:build_engine", packages=("onnxruntime",), extra="onnx"),
        "onnx_suppression": Entry(
            target="boxwright.runtimes.onnx_nms:suppress_file", packages=("onnx",), extra="export"
        ),
    },
    "quantizer": {
        "openvino": Entry(
            target="boxwright.runtimes.openvino_quantize:quantize", packages=("torch", "openvino"), extra="quantize"
        ),
        "openvino_nncf": Entry(
            target="boxwright.runtimes.openvino_nncf:quantize",
            packages=("torch", "openvino", "nncf"),
            extra="quantize",
        ),
        "openvino_bf16": Entry(
            target="boxwright.runtimes.openvino_mixed:mix", packages=("torch", "openvino"), extra="quantize"
        ),
        "onnx_qlinear": Entry(
            target="boxwright.runtimes.onnx_quantize:quantize_static", packages=("onnx", "onnxruntime"), extra="export"
        ),
        "onnx_integer": Entry(
            target="boxwright.runtimes.onnx_quantize:quantize_dynamic", packages=("onnx", "onnxruntime"), extra="export"
        ),
    },
    # What data of other libraries is read with.
    "source": {
        "table": Entry(target="boxwright.accel.estimator.tables:Tables", packages=("torch", "pyarrow"), extra="spark"),
    },
    "evaluator": {
        "coco": Entry(target="boxwright.evaluation.coco:CocoEvaluator", packages=("hotcoco",), extra="eval"),
    },
}


def names(kind: str) -> tuple[str, ...]:
    """Return every name of one kind, in the order of the table."""
    return tuple(CATALOGUE[kind])


def find(kind: str, name: str) -> Entry:
    """Return the entry of a name.

    Raises:
        UsageError: there is no such name; the message suggests the nearest.
    """
    known = CATALOGUE[kind]
    if name not in known:
        raise UsageError(f"Unknown {kind} {name!r}.{suggest(name, known)} Choose from: {', '.join(known)}.")
    return known[name]


def load(kind: str, name: str) -> Any:
    """Import and return what a name stands for.

    Raises:
        UsageError: there is no such name.
        MissingDependencyError: a package it needs is not installed.
    """
    entry = find(kind, name)
    require(*entry.packages, extra=entry.extra, by=f"{kind.capitalize()} {name!r}")
    module, attribute = entry.target.split(":")
    return getattr(import_module(module), attribute)
