"""The building blocks of the network. Attribute names follow the official checkpoints' keys."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from boxwright.core.errors import check_choice

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "silu": lambda: nn.SiLU(inplace=True),
    "relu": lambda: nn.ReLU(inplace=True),
    "lrelu": lambda: nn.LeakyReLU(0.1, inplace=True),
}


def make_activation(name: str) -> nn.Module:
    """Return a new activation module: "silu", "relu" or "lrelu" (slope 0.1).

    Raises:
        UsageError: the name is none of these.
    """
    check_choice("activation", name, _ACTIVATIONS)
    return _ACTIVATIONS[name]()


class ConvBlock(nn.Module):
    """Convolution without bias, batch-norm, activation; padded so that stride 1 keeps the size."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: str = "silu"
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            inputs, outputs, kernel, stride=stride, padding=(kernel - 1) // 2, groups=groups, bias=False
        )
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03)
        self.act = make_activation(act)

    def forward(self, x: Tensor) -> Tensor:
        """Return activation(bn(conv(x)))."""
        out: Tensor = self.act(self.bn(self.conv(x)))
        return out


class DepthwiseBlock(nn.Module):
    """A depthwise convolution and a pointwise one, each a `ConvBlock`."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, act: str = "silu") -> None:
        super().__init__()
        self.dconv = ConvBlock(inputs, inputs, kernel, stride, groups=inputs, act=act)
        self.pconv = ConvBlock(inputs, outputs, 1, act=act)

    def forward(self, x: Tensor) -> Tensor:
        """Return pconv(dconv(x))."""
        out: Tensor = self.pconv(self.dconv(x))
        return out


def conv_block(
    inputs: int, outputs: int, kernel: int, stride: int = 1, *, act: str, depthwise: bool
) -> ConvBlock | DepthwiseBlock:
    """Return the plain or the depthwise form of a convolution block."""
    if depthwise:
        return DepthwiseBlock(inputs, outputs, kernel, stride, act=act)
    return ConvBlock(inputs, outputs, kernel, stride, act=act)


class Focus(nn.Module):
    """Packs each 2×2 patch of pixels into channels, then convolves."""

    def __init__(self, outputs: int, kernel: int, act: str) -> None:
        super().__init__()
        self.conv = ConvBlock(12, outputs, kernel, act=act)

    def forward(self, x: Tensor) -> Tensor:  # (B, 3, H, W)
        """Return features of half the height and width."""
        top_left, bottom_left = x[..., ::2, ::2], x[..., 1::2, ::2]
        top_right, bottom_right = x[..., ::2, 1::2], x[..., 1::2, 1::2]
        out: Tensor = self.conv(torch.cat((top_left, bottom_left, top_right, bottom_right), dim=1))
        return out  # (B, C, H/2, W/2)


class Bottleneck(nn.Module):
    """1×1 then 3×3 convolution, with a shortcut if asked."""

    def __init__(self, channels: int, *, shortcut: bool, act: str, depthwise: bool) -> None:
        super().__init__()
        self.conv1 = ConvBlock(channels, channels, 1, act=act)
        self.conv2 = conv_block(channels, channels, 3, act=act, depthwise=depthwise)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Return the features, the input added where there is a shortcut."""
        out: Tensor = self.conv2(self.conv1(x))
        return out + x if self.shortcut else out


class CspLayer(nn.Module):
    """Two branches of half the channels, one through `depth` bottlenecks, joined again."""

    def __init__(
        self, inputs: int, outputs: int, depth: int, *, shortcut: bool = True, act: str, depthwise: bool
    ) -> None:
        super().__init__()
        hidden = outputs // 2
        self.conv1 = ConvBlock(inputs, hidden, 1, act=act)
        self.conv2 = ConvBlock(inputs, hidden, 1, act=act)
        self.conv3 = ConvBlock(2 * hidden, outputs, 1, act=act)
        self.m = nn.Sequential(
            *(Bottleneck(hidden, shortcut=shortcut, act=act, depthwise=depthwise) for _ in range(depth))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the joined branches."""
        out: Tensor = self.conv3(torch.cat((self.m(self.conv1(x)), self.conv2(x)), dim=1))
        return out


class SppBottleneck(nn.Module):
    """Max pools of 5, 9 and 13 pixels beside the input, between two 1×1 convolutions."""

    def __init__(self, inputs: int, outputs: int, act: str) -> None:
        super().__init__()
        hidden = inputs // 2
        self.conv1 = ConvBlock(inputs, hidden, 1, act=act)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)
        self.conv2 = ConvBlock(4 * hidden, outputs, 1, act=act)

    def forward(self, x: Tensor) -> Tensor:
        """Return features that have seen up to 13×13 cells."""
        x = self.conv1(x)
        # Pooling 5 twice is pooling 9, three times 13: the same maxima for a third of the work.
        five = self.pool(x)
        nine = self.pool(five)
        out: Tensor = self.conv2(torch.cat((x, five, nine, self.pool(nine)), dim=1))
        return out


class ResidualLayer(nn.Module):
    """Darknet-53's residual unit: 1×1 to half the channels, 3×3 back, added to the input."""

    def __init__(self, channels: int, act: str) -> None:
        super().__init__()
        self.layer1 = ConvBlock(channels, channels // 2, 1, act=act)
        self.layer2 = ConvBlock(channels // 2, channels, 3, act=act)

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus its refinement."""
        out: Tensor = self.layer2(self.layer1(x))
        return x + out
