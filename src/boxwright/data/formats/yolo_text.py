"""One label file of a YOLO set: `parse_label` and `format_label`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from boxwright.core.boxes import area_xyxy, cxcywh_to_xyxy, xyxy_to_cxcywh

# Leaves room for areas in float32, also after the image's size has come in.
_LARGEST = 1e6


@dataclass(slots=True)
class YoloLabel:
    """What a label file says, in parts of the image; `wrong` has a rule and a sentence for each line of no use."""

    class_ids: list[int] = field(default_factory=list)
    boxes_cxcywh: list[list[float]] = field(default_factory=list)
    polygon_areas: list[float] = field(default_factory=list)
    """The area of the polygon on a line, NaN for a line with a box."""
    wrong: list[tuple[str, str]] = field(default_factory=list)

    def in_pixels(self, size_hw: tuple[int, int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the boxes xyxy (K, 4) and the areas (K,) in an image of this size."""
        height, width = size_hw
        parts = cxcywh_to_xyxy(np.array(self.boxes_cxcywh, np.float64).reshape(-1, 4))
        boxes = (parts * (width, height, width, height)).astype(np.float32)
        polygons = np.array(self.polygon_areas, np.float64) * (height * width)
        return boxes, np.where(np.isnan(polygons), area_xyxy(boxes), polygons).astype(np.float32)


def parse_label(text: str, classes: int) -> YoloLabel:
    r"""Return what the text of a label file says about objects of so many classes.

    Example:
        >>> label = parse_label("0 0.5 0.5 0.2 0.4\n7 0.5 0.5 1 1\n1 0 0 1 0 1 1\n", classes=2)
        >>> label.class_ids, label.boxes_cxcywh
        ([0, 1], [[0.5, 0.5, 0.2, 0.4], [0.5, 0.5, 1.0, 1.0]])
        >>> label.wrong
        [('unknown-class', 'line 2: there is no class 7, only 0 to 1.')]
    """
    label = YoloLabel()
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.split()
        if not fields:
            continue
        try:
            first, *values = map(float, fields)
        except ValueError:
            label.wrong.append(("bad-label", f"line {number}: {line.strip()[:80]!r} has something else than numbers."))
            continue
        if not all(abs(v) < _LARGEST for v in (first, *values)):  # NaN fails this too
            label.wrong.append(("bad-label", f"line {number}: {line.strip()[:80]!r} has numbers that are no parts."))
        elif first != int(first):
            label.wrong.append(("bad-label", f"line {number}: the class {fields[0]!r} is no whole number."))
        elif not 0 <= first < classes:
            sentence = f"line {number}: there is no class {int(first)}, only 0 to {classes - 1}."
            label.wrong.append(("unknown-class", sentence))
        elif len(values) == 4:
            label.class_ids.append(int(first))
            label.boxes_cxcywh.append(values)
            label.polygon_areas.append(math.nan)
        elif len(values) >= 6 and len(values) % 2 == 0:
            box, area = _around(values)
            label.class_ids.append(int(first))
            label.boxes_cxcywh.append(box)
            label.polygon_areas.append(area)
        else:
            sentence = f"line {number}: {len(fields)} numbers are neither a class and a box (5) nor a polygon."
            label.wrong.append(("bad-label", sentence))
    return label


def format_label(boxes_xyxy: NDArray[np.float32], class_ids: NDArray[np.int32], size_hw: tuple[int, int]) -> str:
    """Return the text of a label file, with as many decimals as it takes to get the same float32 corners again."""
    height, width = size_hw
    scale = np.array([width, height, width, height], np.float64)
    parts = xyxy_to_cxcywh(boxes_xyxy.astype(np.float64)) / scale
    lines = []
    for class_id, box, part in zip(class_ids.tolist(), boxes_xyxy, parts, strict=True):
        for decimals in (6, 9, 12, None):
            texts = [_short(value, decimals) for value in part.tolist()]
            again = (cxcywh_to_xyxy(np.array(texts, np.float64)) * scale).astype(np.float32)
            if np.array_equal(again, box):
                break
        lines.append(f"{class_id} {' '.join(texts)}\n")
    return "".join(lines)


def _short(value: float, decimals: int | None) -> str:
    # No exponents: not every reader knows them.
    return np.format_float_positional(value, decimals, trim="-")


def _around(points: Sequence[float]) -> tuple[list[float], float]:
    """Return the box around a polygon, centre and size, and the polygon's own area."""
    xy = np.array(points, np.float64).reshape(-1, 2)
    low, high = xy.min(axis=0), xy.max(axis=0)
    following = np.roll(xy, -1, axis=0)
    twice = float(np.sum(xy[:, 0] * following[:, 1] - xy[:, 1] * following[:, 0]))
    return [*((low + high) / 2).tolist(), *(high - low).tolist()], abs(twice) / 2
