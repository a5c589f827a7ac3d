"""Residual networks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from boxwright.core.errors import UsageError
from boxwright.vision.models.weights import check_classes, refuse_weights


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

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


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 convolutions, beside a shortcut; the stride is in the middle."""

    expansion = 4

    def __init__(self, inplanes: int, planes: int, stride: int = 1, downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, planes * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the block: (B, inplanes, H, W) to (B, 4 planes, H / stride, W / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        joined: Tensor = self.relu(self.bn3(self.conv3(x)) + shortcut)
        return joined


class ResNet(nn.Module):
    """A residual network of four stages.

    Args:
        block: `BasicBlock` or `Bottleneck`.
        layers: blocks of each stage.
        num_classes: outputs of the last layer.
    """

    def __init__(
        self, block: type[BasicBlock] | type[Bottleneck], layers: Sequence[int], num_classes: int = 1000
    ) -> None:
        super().__init__()
        check_classes(num_classes)
        if len(layers) != 4:
            raise UsageError(f"layers={layers!r} must be four numbers: the blocks of each stage.")
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        wide = block.expansion
        self.layer1 = _make_stage(block, 64, 64, layers[0], stride=1)
        self.layer2 = _make_stage(block, 64 * wide, 128, layers[1], stride=2)
        self.layer3 = _make_stage(block, 128 * wide, 256, layers[2], stride=2)
        self.layer4 = _make_stage(block, 256 * wide, 512, layers[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * wide, num_classes)
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
    """Return an untrained ResNet-18; `pretrained` and `weights` are refused, because nothing is downloaded.

    Raises:
        UsageError: weights are asked for, or `num_classes` is below 1.

    Example:
        >>> model = resnet18(num_classes=10)
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    refuse_weights("resnet18", pretrained, weights)
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes)


def resnet34(*, num_classes: int = 1000, pretrained: bool = False, weights: Any = None) -> ResNet:
    """Return an untrained ResNet-34; arguments and errors as in `resnet18`."""
    refuse_weights("resnet34", pretrained, weights)
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes)


def resnet50(*, num_classes: int = 1000, pretrained: bool = False, weights: Any = None) -> ResNet:
    """Return an untrained ResNet-50; arguments and errors as in `resnet18`."""
    refuse_weights("resnet50", pretrained, weights)
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes)


def _make_stage(
    block: type[BasicBlock] | type[Bottleneck], inplanes: int, planes: int, blocks: int, *, stride: int
) -> nn.Sequential:
    wide = planes * block.expansion
    downsample = None
    if stride != 1 or inplanes != wide:
        downsample = nn.Sequential(nn.Conv2d(inplanes, wide, 1, stride=stride, bias=False), nn.BatchNorm2d(wide))
    first = block(inplanes, planes, stride, downsample)
    return nn.Sequential(first, *(block(wide, planes) for _ in range(blocks - 1)))
