"""Networks with torchvision's names, so that code written for it runs where it is not installed.

Layers and state-dict keys are named as in torchvision: weights saved by one load into the other.
"""

from typing import Any

import torch
from torch import Tensor, nn

from boxwright.core.errors import UsageError

__all__ = ["BasicBlock", "ResNet", "resnet18"]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inplanes: int, planes: int, stride: int = 1, downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the block: (B, inplanes, H, W) to (B, planes, H / stride, W / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        joined: Tensor = self.relu(self.bn2(self.conv2(x)) + shortcut)
        return joined


class ResNet(nn.Module):
    """A residual network of basic blocks in four stages.

    Args:
        layers: blocks of each stage.
        num_classes: outputs of the last layer.
    """

    def __init__(self, layers: tuple[int, int, int, int], num_classes: int = 1000) -> None:
        super().__init__()
        if num_classes < 1:
            raise UsageError(f"num_classes={num_classes!r} must be at least 1.")
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _make_stage(64, 64, layers[0], stride=1)
        self.layer2 = _make_stage(64, 128, layers[1], stride=2)
        self.layer3 = _make_stage(128, 256, layers[2], stride=2)
        self.layer4 = _make_stage(256, 512, layers[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes' logits: (B, 3, H, W) to (B, num_classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


def resnet18(*, num_classes: int = 1000, pretrained: bool = False, weights: Any = None) -> ResNet:
    """Return an untrained ResNet-18.

    Args:
        num_classes: outputs of the last layer.
        pretrained: not offered, because nothing is downloaded.
        weights: not offered either.

    Raises:
        UsageError: weights are asked for.

    Example:
        >>> model = resnet18(num_classes=10)
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    if pretrained or weights is not None:
        asked = f"weights={weights!r}" if weights is not None else f"pretrained={pretrained!r}"
        raise UsageError(
            f"resnet18({asked}): nothing is downloaded. Load a state dict of your own with model.load_state_dict()."
        )
    return ResNet((2, 2, 2, 2), num_classes)


def _make_stage(inplanes: int, planes: int, blocks: int, *, stride: int) -> nn.Sequential:
    downsample = None
    if stride != 1 or inplanes != planes:
        downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride=stride, bias=False), nn.BatchNorm2d(planes))
    first = BasicBlock(inplanes, planes, stride, downsample)
    return nn.Sequential(first, *(BasicBlock(planes, planes) for _ in range(blocks - 1)))
