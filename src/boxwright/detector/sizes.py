"""The size table of the family. No torch is needed to read it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What makes one model of the family."""

    depth: float
    width: float
    input_hw: tuple[int, int]
    depthwise: bool = False
    act: str = "silu"
    darknet53: bool = False


SIZES: dict[str, Size] = {
    "yolox_nano": Size(depth=0.33, width=0.25, input_hw=(416, 416), depthwise=True),
    "yolox_tiny": Size(depth=0.33, width=0.375, input_hw=(416, 416)),
    "yolox_s": Size(depth=0.33, width=0.50, input_hw=(640, 640)),
    "yolox_m": Size(depth=0.67, width=0.75, input_hw=(640, 640)),
    "yolox_l": Size(depth=1.0, width=1.0, input_hw=(640, 640)),
    "yolox_x": Size(depth=1.33, width=1.25, input_hw=(640, 640)),
    "yolov3": Size(depth=1.0, width=1.0, input_hw=(640, 640), act="lrelu", darknet53=True),
}
