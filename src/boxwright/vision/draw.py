"""Drawing detections into an image."""

import colorsys

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.core.types import Detections

_FONT = cv2.FONT_HERSHEY_SIMPLEX


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
    full_h, full_w = detections.size_hw
    boxes = detections.boxes_xyxy * np.array([width / full_w, height / full_h] * 2, np.float32)
    scale = max(min(height, width) / 1000, 0.35)
    thick = max(round(scale * 2.5), 1)
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
