"""MobileNet V2 and V3."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from boxwright.core.errors import UsageError
from boxwright.vision.models.weights import check_classes, refuse_weights


class _ConvNorm(nn.Sequential):
    """A convolution with "same" padding, batch normalisation and, if given, an activation."""

    def __init__(
        self,
        inplanes: int,
        planes: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        groups: int = 1,
        norm: Any = nn.BatchNorm2d,
        activation: type[nn.Module] | None = nn.ReLU6,
    ) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(inplanes, planes, kernel, stride, kernel // 2, groups=groups, bias=False),
            norm(planes),
        ]
        if activation is not None:
            layers.append(activation(inplace=True))
        super().__init__(*layers)


class InvertedResidual(nn.Module):
    """The block of V2: widen by `expand_ratio`, a depthwise convolution, narrow again; a shortcut where shapes fit."""

    def __init__(self, inp: int, oup: int, stride: int, expand_ratio: int) -> None:
        super().__init__()
        hidden = round(inp * expand_ratio)
        layers: list[nn.Module] = [] if expand_ratio == 1 else [_ConvNorm(inp, hidden, 1)]
        layers += [
            _ConvNorm(hidden, hidden, stride=stride, groups=hidden),
            nn.Conv2d(hidden, oup, 1, bias=False),
            nn.BatchNorm2d(oup),
        ]
        self.conv = nn.Sequential(*layers)
        self.use_res_connect = stride == 1 and inp == oup

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the block: (B, inp, H, W) to (B, oup, H / stride, W / stride)."""
        made: Tensor = self.conv(x)
        return x + made if self.use_res_connect else made


# widening, channels, blocks, stride of the first block
_V2_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip


class MobileNetV2(nn.Module):
    """MobileNet V2.

    Args:
        num_classes: outputs of the last layer.
        width_mult: factor of all channels.
        dropout: the share of features that is dropped before the last layer in training.
    """

    def __init__(self, num_classes: int = 1000, width_mult: float = 1.0, *, dropout: float = 0.2) -> None:
        super().__init__()
        check_classes(num_classes)
        _check_width(width_mult)
        planes = _divisible(32 * width_mult)
        self.last_channel = _divisible(1280 * max(1.0, width_mult))
        features: list[nn.Module] = [_ConvNorm(3, planes, stride=2)]
        for expand, channels, blocks, stride in _V2_STAGES:
            wide = _divisible(channels * width_mult)
            for index in range(blocks):
                features.append(InvertedResidual(planes, wide, stride if index == 0 else 1, expand))
                planes = wide
        features.append(_ConvNorm(planes, self.last_channel, 1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(self.last_channel, num_classes))
        _start(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes' logits: (B, 3, H, W) to (B, num_classes)."""
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits


class _SqueezeExcitation(nn.Module):
    """Scales each channel by a number from 0 to 1 that depends on the means of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.activation = nn.ReLU()
        self.scale_activation = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled features."""
        scale: Tensor = self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(x)))))
        return scale * x


class _V3Block(NamedTuple):
    kernel: int
    expanded: int
    channels: int
    squeeze: bool
    activation: type[nn.Module]
    stride: int


_RE, _HS = nn.ReLU, nn.Hardswish
_LARGE = [
    _V3Block(*row)
    for row in (
        (3, 16, 16, False, _RE, 1), (3, 64, 24, False, _RE, 2), (3, 72, 24, False, _RE, 1),
        (5, 72, 40, True, _RE, 2), (5, 120, 40, True, _RE, 1), (5, 120, 40, True, _RE, 1),
        (3, 240, 80, False, _HS, 2), (3, 200, 80, False, _HS, 1), (3, 184, 80, False, _HS, 1),
        (3, 184, 80, False, _HS, 1), (3, 480, 112, True, _HS, 1), (3, 672, 112, True, _HS, 1),
        (5, 672, 160, True, _HS, 2), (5, 960, 160, True, _HS, 1), (5, 960, 160, True, _HS, 1),
    )
]  # fmt: skip
_SMALL = [
    _V3Block(*row)
    for row in (
        (3, 16, 16, True, _RE, 2), (3, 72, 24, False, _RE, 2), (3, 88, 24, False, _RE, 1),
        (5, 96, 40, True, _HS, 2), (5, 240, 40, True, _HS, 1), (5, 240, 40, True, _HS, 1),
        (5, 120, 48, True, _HS, 1), (5, 144, 48, True, _HS, 1), (5, 288, 96, True, _HS, 2),
        (5, 576, 96, True, _HS, 1), (5, 576, 96, True, _HS, 1),
    )
]  # fmt: skip
_v3_norm = partial(nn.BatchNorm2d, eps=0.001, momentum=0.01)


class _InvertedResidualV3(nn.Module):
    def __init__(self, inplanes: int, row: _V3Block) -> None:
        super().__init__()
        style: dict[str, Any] = {"norm": _v3_norm, "activation": row.activation}
        layers: list[nn.Module] = []
        if row.expanded != inplanes:
            layers.append(_ConvNorm(inplanes, row.expanded, 1, **style))
        layers.append(
            _ConvNorm(row.expanded, row.expanded, row.kernel, stride=row.stride, groups=row.expanded, **style)
        )
        if row.squeeze:
            layers.append(_SqueezeExcitation(row.expanded, _divisible(row.expanded // 4)))
        layers.append(_ConvNorm(row.expanded, row.channels, 1, norm=_v3_norm, activation=None))
        self.block = nn.Sequential(*layers)
        self.use_res_connect = row.stride == 1 and inplanes == row.channels

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.block(x)
        return x + made if self.use_res_connect else made


class MobileNetV3(nn.Module):
    """MobileNet V3.

    Args:
        blocks: the rows of the table of its blocks.
        last_channel: features between the two last layers.
        num_classes: outputs of the last layer.
        dropout: the share of features that is dropped before the last layer in training.
    """

    def __init__(
        self, blocks: list[_V3Block], last_channel: int, num_classes: int = 1000, *, dropout: float = 0.2
    ) -> None:
        super().__init__()
        check_classes(num_classes)
        style: dict[str, Any] = {"norm": _v3_norm, "activation": nn.Hardswish}
        planes = 16
        features: list[nn.Module] = [_ConvNorm(3, planes, stride=2, **style)]
        for row in blocks:
            features.append(_InvertedResidualV3(planes, row))
            planes = row.channels
        features.append(_ConvNorm(planes, 6 * planes, 1, **style))
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(6 * planes, last_channel),
            nn.Hardswish(inplace=True),
            nn.Dropout(dropout, inplace=True),
            nn.Linear(last_channel, num_classes),
        )
        _start(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes' logits: (B, 3, H, W) to (B, num_classes)."""
        logits: Tensor = self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
        return logits


def mobilenet_v2(
    *, num_classes: int = 1000, width_mult: float = 1.0, pretrained: bool = False, weights: Any = None
) -> MobileNetV2:
    """Return an untrained MobileNet V2; `pretrained` and `weights` are refused, because nothing is downloaded.

    Raises:
        UsageError: weights are asked for, or a number is out of range.

    Example:
        >>> mobilenet_v2(num_classes=3).eval()(torch.zeros(2, 3, 32, 64)).shape
        torch.Size([2, 3])
    """
    refuse_weights("mobilenet_v2", pretrained, weights)
    return MobileNetV2(num_classes, width_mult)


def mobilenet_v3_large(*, num_classes: int = 1000, pretrained: bool = False, weights: Any = None) -> MobileNetV3:
    """Return an untrained MobileNet V3 of the large kind; arguments and errors as in `mobilenet_v2`."""
    refuse_weights("mobilenet_v3_large", pretrained, weights)
    return MobileNetV3(_LARGE, 1280, num_classes)


def mobilenet_v3_small(*, num_classes: int = 1000, pretrained: bool = False, weights: Any = None) -> MobileNetV3:
    """Return an untrained MobileNet V3 of the small kind; arguments and errors as in `mobilenet_v2`."""
    refuse_weights("mobilenet_v3_small", pretrained, weights)
    return MobileNetV3(_SMALL, 1024, num_classes)


def _divisible(channels: float, divisor: int = 8) -> int:
    """Return the nearest multiple of 8, at least 8 and never under 90 % of the value."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def _check_width(width_mult: float) -> None:
    if not 0 < width_mult <= 16:
        raise UsageError(f"width_mult={width_mult!r} must be above 0 and at most 16.")


def _start(model: nn.Module) -> None:
    """Set the first weights."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 0.01)
            nn.init.zeros_(module.bias)
