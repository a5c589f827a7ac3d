"""The two backbones. Each returns features at strides 8, 16 and 32."""

from torch import Tensor, nn

from boxwright.detector.blocks import ConvBlock, CspLayer, Focus, ResidualLayer, SppBottleneck, conv_block

Pyramid = tuple[Tensor, Tensor, Tensor]
"""Features at strides 8, 16, 32."""


class CspDarknet(nn.Module):
    """The backbone of yolox nano to x."""

    def __init__(self, depth: float, width: float, *, act: str, depthwise: bool) -> None:
        super().__init__()
        base = int(width * 64)
        units = max(round(depth * 3), 1)

        def stage(inputs: int, count: int) -> nn.Sequential:
            return nn.Sequential(
                conv_block(inputs, inputs * 2, 3, 2, act=act, depthwise=depthwise),
                CspLayer(inputs * 2, inputs * 2, count, act=act, depthwise=depthwise),
            )

        self.stem = Focus(base, 3, act)
        self.dark2 = stage(base, units)
        self.dark3 = stage(base * 2, units * 3)
        self.dark4 = stage(base * 4, units * 3)
        self.dark5 = nn.Sequential(
            conv_block(base * 8, base * 16, 3, 2, act=act, depthwise=depthwise),
            SppBottleneck(base * 16, base * 16, act),
            CspLayer(base * 16, base * 16, units, shortcut=False, act=act, depthwise=depthwise),
        )

    def forward(self, images: Tensor) -> Pyramid:
        """Return features at strides 8, 16, 32."""
        level8 = self.dark3(self.dark2(self.stem(images)))
        level16 = self.dark4(level8)
        return level8, level16, self.dark5(level16)


class Darknet53(nn.Module):
    """The backbone of the yolov3 variant, with spatial pyramid pooling at the end."""

    def __init__(self, act: str) -> None:
        super().__init__()
        stem = 32

        def stage(inputs: int, count: int) -> list[nn.Module]:
            return [
                ConvBlock(inputs, inputs * 2, 3, 2, act=act),
                *(ResidualLayer(inputs * 2, act) for _ in range(count)),
            ]

        self.stem = nn.Sequential(ConvBlock(3, stem, 3, act=act), *stage(stem, 1))
        self.dark2 = nn.Sequential(*stage(stem * 2, 2))
        self.dark3 = nn.Sequential(*stage(stem * 4, 8))
        self.dark4 = nn.Sequential(*stage(stem * 8, 8))
        self.dark5 = nn.Sequential(
            *stage(stem * 16, 4),
            ConvBlock(1024, 512, 1, act=act),
            ConvBlock(512, 1024, 3, act=act),
            SppBottleneck(1024, 512, act),
            ConvBlock(512, 1024, 3, act=act),
            ConvBlock(1024, 512, 1, act=act),
        )

    def forward(self, images: Tensor) -> Pyramid:
        """Return features at strides 8, 16, 32."""
        level8 = self.dark3(self.dark2(self.stem(images)))
        level16 = self.dark4(level8)
        return level8, level16, self.dark5(level16)
