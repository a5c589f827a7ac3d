"""The necks: they mix the backbone's levels and own the backbone, as the official keys have it."""

import torch
from torch import Tensor, nn

from boxwright.detector.backbone import CspDarknet, Darknet53, Pyramid
from boxwright.detector.blocks import ConvBlock, CspLayer, conv_block


class PathAggregation(nn.Module):
    """Top-down, then bottom-up mixing of the three levels (yolox nano to x)."""

    def __init__(self, depth: float, width: float, *, act: str, depthwise: bool) -> None:
        super().__init__()
        self.backbone = CspDarknet(depth, width, act=act, depthwise=depthwise)
        low, mid, high = (int(c * width) for c in (256, 512, 1024))
        units = round(3 * depth)

        def mix(inputs: int, outputs: int) -> CspLayer:
            return CspLayer(inputs, outputs, units, shortcut=False, act=act, depthwise=depthwise)

        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.lateral_conv0 = ConvBlock(high, mid, 1, act=act)
        self.C3_p4 = mix(2 * mid, mid)
        self.reduce_conv1 = ConvBlock(mid, low, 1, act=act)
        self.C3_p3 = mix(2 * low, low)
        self.bu_conv2 = conv_block(low, low, 3, 2, act=act, depthwise=depthwise)
        self.C3_n3 = mix(2 * low, mid)
        self.bu_conv1 = conv_block(mid, mid, 3, 2, act=act, depthwise=depthwise)
        self.C3_n4 = mix(2 * mid, high)

    def forward(self, images: Tensor) -> Pyramid:
        """Return mixed features at strides 8, 16, 32."""
        level8, level16, level32 = self.backbone(images)
        top = self.lateral_conv0(level32)
        middle = self.C3_p4(torch.cat((self.upsample(top), level16), dim=1))
        middle = self.reduce_conv1(middle)
        out8 = self.C3_p3(torch.cat((self.upsample(middle), level8), dim=1))
        out16 = self.C3_n3(torch.cat((self.bu_conv2(out8), middle), dim=1))
        out32 = self.C3_n4(torch.cat((self.bu_conv1(out16), top), dim=1))
        return out8, out16, out32


class TopDown(nn.Module):
    """Top-down mixing only (yolov3)."""

    def __init__(self, act: str) -> None:
        super().__init__()
        self.backbone = Darknet53(act)

        def embed(inputs: int, narrow: int, wide: int) -> nn.Sequential:
            return nn.Sequential(
                ConvBlock(inputs, narrow, 1, act=act),
                ConvBlock(narrow, wide, 3, act=act),
                ConvBlock(wide, narrow, 1, act=act),
                ConvBlock(narrow, wide, 3, act=act),
                ConvBlock(wide, narrow, 1, act=act),
            )

        self.out1_cbl = ConvBlock(512, 256, 1, act=act)
        self.out1 = embed(512 + 256, 256, 512)
        self.out2_cbl = ConvBlock(256, 128, 1, act=act)
        self.out2 = embed(256 + 128, 128, 256)
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, images: Tensor) -> Pyramid:
        """Return mixed features at strides 8, 16, 32."""
        level8, level16, level32 = self.backbone(images)
        out16 = self.out1(torch.cat((self.upsample(self.out1_cbl(level32)), level16), dim=1))
        out8 = self.out2(torch.cat((self.upsample(self.out2_cbl(out16)), level8), dim=1))
        return out8, out16, level32
