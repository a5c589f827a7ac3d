"""Drawing detections into an image, and images side by side."""

import colorsys
import math
from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.core.boxes import FloatArray, clip_xyxy
from boxwright.core.types import Detections

_FONT = cv2.FONT_HERSHEY_SIMPLEX
_DASH_PX = 5


def class_colour(class_id: int) -> tuple[int, int, int]:
    """Return a BGR colour that neighbouring class ids do not share."""
    # Steps of the golden ratio around the colour circle never come close to an earlier one.
    red, green, blue = colorsys.hsv_to_rgb((class_id * 0.61803399) % 1, 0.85, 0.95)
    return int(blue * 255), int(green * 255), int(red * 255)


def draw_detections(image: NDArray[np.uint8], detections: Detections, *, scores: bool = True) -> NDArray[np.uint8]:
    """Return a copy of a BGR image with boxes, class names and scores; the best boxes are on top.

    The image may be smaller or larger than the one that the detections belong to: boxes are scaled to it.
    """
    canvas = image.copy()
    height, width = canvas.shape[:2]
    boxes = _scaled(detections.boxes_xyxy, detections.size_hw, canvas)
    scale = _text_scale(canvas)
    thick = _thickness(canvas)
    for at in np.argsort(detections.scores, kind="stable"):
        x1, y1, x2, y2 = (round(float(v)) for v in boxes[at])
        class_id = int(detections.class_ids[at])
        colour = class_colour(class_id)
        cv2.rectangle(canvas, (x1, y1), (x2, y2), colour, thick, cv2.LINE_AA)
        label = detections.names[class_id] + (f" {detections.scores[at]:.2f}" if scores else "")
        (text_w, text_h), base = cv2.getTextSize(label, _FONT, scale, thick)
        left = min(max(x1, 0), max(width - text_w, 0))
        bottom = y1 if y1 >= text_h + base else min(y1 + text_h + base, height)
        cv2.rectangle(canvas, (left, bottom - text_h - base), (left + text_w, bottom), colour, cv2.FILLED)
        dark = sum(colour) > 380
        ink = (0, 0, 0) if dark else (255, 255, 255)
        cv2.putText(canvas, label, (left, bottom - base // 2 - 1), _FONT, scale, ink, max(thick // 2, 1), cv2.LINE_AA)
    return canvas


def draw_dashed(image: NDArray[np.uint8], boxes_xyxy: FloatArray, size_hw: tuple[int, int]) -> NDArray[np.uint8]:
    """Return a copy of a BGR image with boxes in black and white dashes; what is below shows in gaps between them.

    `size_hw` is the size of the image that the boxes belong to; they are scaled to this one and cut to it.
    """
    canvas = image.copy()
    height, width = canvas.shape[:2]
    lines = np.zeros((height, width), np.uint8)
    for box in _scaled(clip_xyxy(boxes_xyxy, size_hw), size_hw, canvas):
        x1, y1, x2, y2 = np.minimum(box.round(), (width - 1, height - 1) * 2).astype(int).tolist()
        cv2.rectangle(lines, (x1, y1), (x2, y2), 1, _thickness(canvas))
    y, x = np.nonzero(lines)
    part = (x + y) // _DASH_PX % 3
    for number, ink in enumerate((255, 0)):
        canvas[y[part == number], x[part == number]] = ink
    return canvas


def contact_sheet(images: Sequence[NDArray[np.uint8]], cell_hw: tuple[int, int], fill: int = 255) -> NDArray[np.uint8]:
    """Return images in rows and columns of equal cells, each at the top left of its cell."""
    columns = math.ceil(math.sqrt(len(images)))
    height, width = cell_hw
    sheet = np.full((math.ceil(len(images) / columns) * height, columns * width, 3), fill, np.uint8)
    for at, image in enumerate(images):
        y, x = at // columns * height, at % columns * width
        sheet[y : y + image.shape[0], x : x + image.shape[1]] = image
    return sheet


def _scaled(boxes_xyxy: FloatArray, size_hw: tuple[int, int], canvas: NDArray[np.uint8]) -> FloatArray:
    height, width = canvas.shape[:2]
    full_h, full_w = size_hw
    return boxes_xyxy * np.array([width / full_w, height / full_h] * 2, np.float32)


def _text_scale(canvas: NDArray[np.uint8]) -> float:
    return max(float(min(canvas.shape[:2])) / 1000, 0.35)


def _thickness(canvas: NDArray[np.uint8]) -> int:
    return max(round(_text_scale(canvas) * 2.5), 1)
