"""The YOLOX family by size: one function per model.

Example:
    >>> model = yolox_nano(num_classes=3)
    >>> sum(p.numel() for p in model.parameters())
    897144
"""

from torch import Tensor, nn

from boxwright.core.errors import UsageError
from boxwright.detector.head import DecoupledHead, RawOutputs
from boxwright.detector.neck import PathAggregation, TopDown
from boxwright.detector.sizes import SIZES, Size


class Yolox(nn.Module):
    """A detector: the neck (with its backbone) and the head. `forward` returns raw outputs in every mode."""

    def __init__(self, size: Size, num_classes: int, act: str | None = None) -> None:
        super().__init__()
        if num_classes < 1:
            raise UsageError(f"num_classes={num_classes!r}: a detector needs at least one class.")
        act = act or size.act
        channels: tuple[int, ...]
        if size.darknet53:
            self.backbone: nn.Module = TopDown(act)
            channels = (128, 256, 512)
        else:
            self.backbone = PathAggregation(size.depth, size.width, act=act, depthwise=size.depthwise)
            channels = tuple(int(c * size.width) for c in (256, 512, 1024))
        self.head = DecoupledHead(num_classes, channels, int(256 * size.width), act=act, depthwise=size.depthwise)
        self.num_classes = num_classes

    def forward(self, images: Tensor) -> RawOutputs:  # (B, 3, H, W), values 0 to 255
        """Return the raw outputs; loss and decoding are functions beside the model."""
        out: RawOutputs = self.head(self.backbone(images))
        return out


def build(name: str, num_classes: int = 80, act: str | None = None) -> Yolox:
    """Return a new model of the family by its name in `SIZES`."""
    return Yolox(SIZES[name], num_classes, act)


def yolox_nano(num_classes: int = 80, act: str | None = None) -> Yolox:
    """Return YOLOX-nano (depthwise, 416×416)."""
    return build("yolox_nano", num_classes, act)


def yolox_tiny(num_classes: int = 80, act: str | None = None) -> Yolox:
    """Return YOLOX-tiny (416×416)."""
    return build("yolox_tiny", num_classes, act)


def yolox_s(num_classes: int = 80, act: str | None = None) -> Yolox:
    """Return YOLOX-s (640×640)."""
    return build("yolox_s", num_classes, act)


def yolox_m(num_classes: int = 80, act: str | None = None) -> Yolox:
    """Return YOLOX-m (640×640)."""
    return build("yolox_m", num_classes, act)


def yolox_l(num_classes: int = 80, act: str | None = None) -> Yolox:
    """Return YOLOX-l (640×640)."""
    return build("yolox_l", num_classes, act)


def yolox_x(num_classes: int = 80, act: str | None = None) -> Yolox:
    """Return YOLOX-x (640×640)."""
    return build("yolox_x", num_classes, act)


def yolov3(num_classes: int = 80, act: str | None = None) -> Yolox:
    """Return the YOLOv3 variant (Darknet-53, LeakyReLU, 640×640)."""
    return build("yolov3", num_classes, act)
