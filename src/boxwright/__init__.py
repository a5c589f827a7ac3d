"""Boxwright: train, optimise and serve the YOLOX object detector fast on the machines people already have."""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

# Public names and where they live. Nothing is imported before it is asked for, so `import boxwright` needs no torch.
_HOMES = {
    "BoxwrightError": "boxwright.core.errors",
    "Detections": "boxwright.core.types",
    "Precision": "boxwright.core.types",
    "Spec": "boxwright.core.spec",
    "Predictor": "boxwright.tasks.predict.predictor",
    "Thresholds": "boxwright.tasks.predict.predictor",
    "predict": "boxwright.tasks.predict.predictor",
    "keep_freed_memory": "boxwright.launchers.allocator",
    "serve": "boxwright.serve.run",
    "create_app": "boxwright.serve.run",
    "evaluate": "boxwright.tasks.evaluate",
    "describe": "boxwright.tasks.info",
    "get_weights": "boxwright.tasks.weights.get",
    "examine": "boxwright.tasks.doctor",
    "read_records": "boxwright.data.formats",
    "CocoEvaluator": "boxwright.evaluation.coco",
    "TorchNano": "boxwright.accel.nano",
    "nano": "boxwright.accel.decorator",
    "Trainer": "boxwright.accel.trainer",
    "patch_torch": "boxwright.devices.patching",
    "unpatch_torch": "boxwright.devices.patching",
    "Estimator": "boxwright.accel.estimator",
    "Plan": "boxwright.accel.plan",
    "DeviceOptions": "boxwright.devices.options",
    "init_context": "boxwright.accel.context",
    "stop_context": "boxwright.accel.context",
    "InferenceOptimizer": "boxwright.optimize.optimizer",
    "TrainConfig": "boxwright.tasks.train.run",
    "train": "boxwright.tasks.train.run",
    "TuneConfig": "boxwright.tasks.tune.config",
    "tune": "boxwright.tasks.tune.run",
    "Real": "boxwright.core.spaces",
    "Int": "boxwright.core.spaces",
    "Categorical": "boxwright.core.spaces",
    "Bool": "boxwright.core.spaces",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'boxwright' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
