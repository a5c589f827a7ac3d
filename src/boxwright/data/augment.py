"""Augmentation of uint8 pixels and their boxes, in place where that saves a pass: colours, flip, mixup."""

import math
import threading
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from boxwright.data.policy import AugmentPolicy
from boxwright.data.tile import Tile
from boxwright.vision.letterbox import PAD_VALUE

MIN_SIDE = 1.0
"""Boxes whose sides are not longer than this many pixels after augmentation are dropped."""

Image = NDArray[np.uint8]
Rows = NDArray[np.float32]
"""Boxes with their class: x1, y1, x2, y2, class; (N, 5)."""


class Scratch(threading.local):
    """Work space, separate for each thread.

    Allocating big arrays for every sample would cost as much in page faults as the work itself.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[np.uint8]] = {}

    def take(self, name: str, shape: tuple[int, ...]) -> Image:
        """Return an uninitialised array of this shape, valid until the name is taken again."""
        count = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < count:
            buffer = self._buffers[name] = np.empty(count, np.uint8)
        return buffer[:count].reshape(shape)


def draw_hsv_shift(rng: Generator, policy: AugmentPolicy) -> tuple[int, int, int]:
    """Draw the steps to add to hue, saturation and value; each is 0 half of the time."""
    chance, *draws = rng.random(7).tolist()
    if chance >= policy.hsv_prob:
        return 0, 0, 0
    hue, saturation, value = (
        int((2 * amount - 1) * gain) if chosen < 0.5 else 0
        for amount, chosen, gain in zip(draws[:3], draws[3:], policy.hsv_gains, strict=True)
    )
    return hue, saturation, value


def shift_hsv(image: Image, shift: tuple[int, int, int], scratch: Scratch) -> None:
    """Add steps to hue (which wraps at 180), saturation and value (clipped to 0 and 255), in place.

    Example:
        >>> grey = np.full((2, 2, 3), 100, np.uint8)
        >>> shift_hsv(grey, (0, 0, 30), Scratch())
        >>> int(grey.max())
        130
    """
    if not any(shift):
        return
    hsv = scratch.take("hsv", image.shape)
    cv2.cvtColor(image, cv2.COLOR_BGR2HSV, dst=hsv)
    hue, saturation, value = shift
    if not 0 <= hue <= 255 - 179:
        channel = scratch.take("hue", image.shape[:2])
        cv2.extractChannel(hsv, 0, dst=channel)
        cv2.LUT(channel, ((np.arange(256) + hue) % 180).astype(np.uint8), dst=channel)
        cv2.insertChannel(channel, hsv, 0)
        hue = 0
    # A small step up needs no table: converting back, OpenCV takes hue 180 + h for h.
    cv2.add(hsv, np.array((hue, saturation, value, 0), np.float64), dst=hsv)
    cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR, dst=image)


def flip(image: Image, rows: Rows, width: float) -> None:
    """Mirror an image and its boxes left to right, in place; `width` is the image's width in box coordinates."""
    cv2.flip(image, 1, dst=image)
    rows[:, [0, 2]] = width - rows[:, [2, 0]]


@dataclass(frozen=True, slots=True)
class Mixup:
    """One drawn mixup.

    Attributes:
        scale: factor on the letterboxed image.
        flipped: whether it is mirrored.
        at_xy: which part of an image larger than the output shows, from 0 for its left or top to 1 for the other end.
    """

    scale: float
    flipped: bool
    at_xy: tuple[float, float]


def draw_mixup(rng: Generator, policy: AugmentPolicy) -> Mixup:
    """Draw how the second image is laid over the first."""
    u_scale, u_flip, at_x, at_y = rng.random(4).tolist()
    low, high = policy.mixup_scale
    return Mixup(low + u_scale * (high - low), u_flip < 0.5, (at_x, at_y))


def mix(out: Image, tile: Tile, rows: Rows, mixup: Mixup, scratch: Scratch) -> Rows:
    """Blend a second image into `out`, half and half, in place, and return its boxes there.

    The second image is letterboxed, scaled and mirrored; around it is black, as in YOLOX. `rows` are its boxes in
    pixels of its original.
    """
    height, width = out.shape[:2]
    # The letterboxed second image as a frame of its own, in pixels of `out`.
    frame_h, frame_w = max(int(height * mixup.scale), 1), max(int(width * mixup.scale), 1)
    left, top = int(mixup.at_xy[0] * max(frame_w - width, 0)), int(mixup.at_xy[1] * max(frame_h - height, 0))
    seen_h, seen_w = min(frame_h - top, height), min(frame_w - left, width)
    # Mirrored last, so the visible part comes from the other end of the frame.
    cut_x = frame_w - left - seen_w if mixup.flipped else left

    layer = scratch.take("layer", out.shape)
    layer[:seen_h, :seen_w] = PAD_VALUE
    layer[seen_h:] = 0
    layer[:seen_h, seen_w:] = 0
    ratio = tile.ratio((height, width)) * mixup.scale
    _paste_window(tile, ratio, (top, cut_x), layer[:seen_h, :seen_w], scratch)
    if mixup.flipped:
        cv2.flip(layer[:seen_h, :seen_w], 1, dst=layer[:seen_h, :seen_w])
    cv2.addWeighted(out, 0.5, layer, 0.5, 0, dst=out)

    moved = rows.copy()
    moved[:, :4] *= ratio
    moved[:, :4] -= (cut_x, top, cut_x, top)
    if mixup.flipped:
        moved[:, [0, 2]] = seen_w - moved[:, [2, 0]]
    return keep_visible(moved, (seen_h, seen_w))


def _paste_window(tile: Tile, ratio: float, origin_yx: tuple[int, int], window: Image, scratch: Scratch) -> None:
    """Write the part of a scaled tile that lies in a window, whose top left is at `origin_yx` of the scaled tile."""
    spans = []
    for axis in (0, 1):
        length = tile.pixels.shape[axis]
        factor = tile.size_hw[axis] * ratio / length
        low, high = origin_yx[axis], min(origin_yx[axis] + window.shape[axis], int(length * factor))
        if high <= low:
            return
        # Only the source pixels behind the window are scaled, to whole pixels: up to half a pixel is lost.
        first, last = int(low / factor), min(-int(-high // factor), length)
        start = round(first * factor)
        spans.append((slice(first, last), round(last * factor) - start, slice(low - start, high - start), high - low))
    (rows, height, keep_y, seen_h), (columns, width, keep_x, seen_w) = spans
    scaled = scratch.take("scaled", (height, width, 3))
    cv2.resize(tile.pixels[rows, columns], (width, height), dst=scaled, interpolation=cv2.INTER_LINEAR)
    window[:seen_h, :seen_w] = scaled[keep_y, keep_x]


def keep_visible(rows: Rows, size_hw: tuple[int, int]) -> Rows:
    """Return the boxes clipped to an image, without those left with a side of a pixel or less.

    Example:
        >>> keep_visible(np.array([[-5, 2, 9, 8, 0], [30, 0, 39, 9, 1]], np.float32), (20, 31)).tolist()
        [[0.0, 2.0, 9.0, 8.0, 0.0]]
    """
    if not len(rows):
        return rows
    height, width = size_hw
    boxes = rows[:, :4]
    clip_to(boxes, (width, height))
    sides = boxes[:, 2:] - boxes[:, :2]
    return rows[(sides > MIN_SIDE).all(axis=1)]


def clip_to(boxes_xyxy: NDArray[Any], size_wh: tuple[int, int]) -> None:
    """Clip boxes (N, 4) to an image, in place."""
    # Not np.clip, which takes five times as long for a handful of boxes.
    np.maximum(boxes_xyxy, 0, out=boxes_xyxy)
    np.minimum(boxes_xyxy, np.array((*size_wh, *size_wh), boxes_xyxy.dtype), out=boxes_xyxy)


def to_targets(rows: Rows) -> Rows:
    """Return boxes as training takes them: class, centre x, centre y, width, height; float32 (N, 5).

    Example:
        >>> to_targets(np.array([[10, 20, 30, 60, 2]], np.float32)).tolist()
        [[2.0, 20.0, 40.0, 20.0, 40.0]]
    """
    targets = np.empty((len(rows), 5), np.float32)
    targets[:, 0] = rows[:, 4]
    np.subtract(rows[:, 2:4], rows[:, :2], out=targets[:, 3:])
    targets[:, 1:3] = rows[:, :2]
    targets[:, 1:3] += targets[:, 3:] * np.float32(0.5)
    return targets
