"""Networks with torchvision's names, so that code written for it runs where it is not installed.

Layers and state-dict keys are named as in torchvision: weights saved by one load into the other. `models.vision` has
the same networks with BigDL-Nano's arguments.
"""

from typing import TYPE_CHECKING, Any

from boxwright.vision.models import vision
from boxwright.vision.models.backbone import Backbone, remove_top
from boxwright.vision.models.mobilenet import (
    InvertedResidual,
    MobileNetV2,
    MobileNetV3,
    mobilenet_v2,
    mobilenet_v3_large,
    mobilenet_v3_small,
)
from boxwright.vision.models.resnet import BasicBlock, Bottleneck, ResNet, resnet18, resnet34, resnet50

if TYPE_CHECKING:
    from boxwright.vision.models.classifier import ImageClassifier as ImageClassifier

__all__ = [
    "Backbone",
    "BasicBlock",
    "Bottleneck",
    "ImageClassifier",
    "InvertedResidual",
    "MobileNetV2",
    "MobileNetV3",
    "ResNet",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "mobilenet_v3_small",
    "remove_top",
    "resnet18",
    "resnet34",
    "resnet50",
    "vision",
]


def __getattr__(name: str) -> Any:
    if name == "ImageClassifier":  # needs Lightning, whose import takes seconds
        from boxwright.vision.models.classifier import ImageClassifier

        return ImageClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
