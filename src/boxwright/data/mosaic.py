"""Mosaic: four images around a point, rotated, scaled, sheared and shifted, with one warp.

YOLOX pastes four images on a canvas of twice the input size and warps that. Here only the part of the canvas that the
output shows is pasted, images that it does not show are never read, and only the part of the output that shows an
image is warped. The pixels are the same.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from boxwright.data.augment import Image, Rows, Scratch, clip_to, keep_visible
from boxwright.data.policy import AugmentPolicy
from boxwright.data.tile import Tile
from boxwright.vision.letterbox import PAD_VALUE

Rect = tuple[int, int, int, int]
"""x1, y1, x2, y2 in whole pixels; x2 and y2 are outside."""

CORNERS = (0, 1, 2, 3)
"""Where a tile lies: top left of the centre, top right, bottom left, bottom right."""


@dataclass(frozen=True, slots=True, eq=False)
class Mosaic:
    """One drawn mosaic.

    Attributes:
        size_hw: the input size; the canvas has twice that.
        centre_xy: where the four images meet on the canvas.
        matrix: from coordinates on the canvas to coordinates on an output of `size_hw`, (2, 3).
    """

    size_hw: tuple[int, int]
    centre_xy: tuple[int, int]
    matrix: NDArray[np.float64]

    @property
    def canvas_rect(self) -> Rect:
        """The whole canvas."""
        return 0, 0, 2 * self.size_hw[1], 2 * self.size_hw[0]

    def visible_corners(self) -> list[int]:
        """Return the corners whose tiles the output may show; a tile counts as large as the input."""
        height, width = self.size_hw
        view = _view(self.matrix, self.size_hw)
        frame = (-1, -1, width + 1, height + 1)
        rects = {corner: _cut(_place(self, corner, self.size_hw), self.canvas_rect) for corner in CORNERS}
        # Two parallelograms are apart if their projections on an axis of either are (separating axes).
        return [
            corner
            for corner, rect in rects.items()
            if not _empty(_cut(rect, view)) and not _empty(_cut(_bounds(self.matrix, rect), frame))
        ]


def draw_mosaic(rng: Generator, policy: AugmentPolicy, size_hw: tuple[int, int]) -> Mosaic:
    """Draw where four images meet and how the whole is warped."""
    height, width = size_hw
    u = rng.random(8).tolist()
    centre_xy = int((0.5 + u[0]) * width), int((0.5 + u[1]) * height)
    angle = math.radians((2 * u[2] - 1) * policy.degrees)
    scale = policy.scale[0] + u[3] * (policy.scale[1] - policy.scale[0])
    shear_x = math.tan(math.radians((2 * u[4] - 1) * policy.shear))
    shear_y = math.tan(math.radians((2 * u[5] - 1) * policy.shear))
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    a, b, c, d = cos - shear_x * sin, sin + shear_x * cos, shear_y * cos - sin, shear_y * sin + cos
    x, y = (2 * u[6] - 1) * policy.translate * width, (2 * u[7] - 1) * policy.translate * height
    if policy.anchor == "centre":
        # The middle of the canvas goes to the middle of the output, before the shift.
        x += width / 2 - a * width - b * height
        y += height / 2 - c * width - d * height
    return Mosaic(size_hw, centre_xy, np.array([[a, b, x], [c, d, y]]))


def render_mosaic(mosaic: Mosaic, tiles: Mapping[int, Tile], out: Image, scratch: Scratch) -> None:
    """Write the pixels of a mosaic.

    Args:
        mosaic: the drawn mosaic.
        tiles: by corner; those that the output does not show may be missing.
        out: (H, W, 3), of any size: the mosaic is scaled to it in the same warp.
        scratch: work space.
    """
    height, width = out.shape[:2]
    factor = np.array([width / mosaic.size_hw[1], height / mosaic.size_hw[0]])
    matrix = mosaic.matrix * factor[:, None]
    # At another size than the input's, pixel centres stay in place, as if the whole batch were resized.
    matrix[:, 2] += (factor - 1) / 2
    view = _cut(_view(matrix, (height, width)), mosaic.canvas_rect)
    placed = []
    for corner, tile in tiles.items():
        whole = _place(mosaic, corner, (tile.pixels.shape[0], tile.pixels.shape[1]))
        (x, y), rect = whole[:2], _cut(whole, view)
        if not _empty(rect):
            placed.append((rect, tile.pixels[rect[1] - y : rect[3] - y, rect[0] - x : rect[2] - x]))
    # What the tiles cover, on the canvas and in the output; the rest is padding and needs no warp.
    left, top, right, bottom = _union([rect for rect, _ in placed])
    area = _cut(_bounds(matrix, (left - 1, top - 1, right + 1, bottom + 1)), (0, 0, width, height))
    if not placed or _empty(area):
        out.fill(PAD_VALUE)
        return
    # Four channels, because OpenCV warps them in half the time of three.
    canvas = scratch.take("canvas", (bottom - top, right - left, 4))
    if sum((x2 - x1) * (y2 - y1) for (x1, y1, x2, y2), _ in placed) < canvas.shape[0] * canvas.shape[1]:
        canvas.fill(PAD_VALUE)
    for (x1, y1, x2, y2), pixels in placed:
        cv2.cvtColor(pixels, cv2.COLOR_BGR2BGRA, dst=canvas[y1 - top : y2 - top, x1 - left : x2 - left])
    x1, y1, x2, y2 = area
    matrix[:, 2] += matrix[:, :2] @ (left, top) - (x1, y1)
    warped = scratch.take("warped", (y2 - y1, x2 - x1, 4))
    cv2.warpAffine(canvas, matrix, (x2 - x1, y2 - y1), dst=warped, borderValue=(PAD_VALUE,) * 4)
    if (x2 - x1, y2 - y1) != (width, height):
        out.fill(PAD_VALUE)
    cv2.cvtColor(warped, cv2.COLOR_BGRA2BGR, dst=out[y1:y2, x1:x2])


def place_rows(mosaic: Mosaic, corner: int, tile: Tile, rows: Rows) -> Rows:
    """Return the boxes of one image, given in pixels of the original, on the canvas; not yet clipped to it."""
    x, y = _place(mosaic, corner, (tile.pixels.shape[0], tile.pixels.shape[1]))[:2]
    moved = rows.copy()
    moved[:, :4] *= tile.ratio(mosaic.size_hw)
    moved[:, :4] += (x, y, x, y)
    return moved


def warp_rows(mosaic: Mosaic, rows: Rows, out_hw: tuple[int, int]) -> Rows:
    """Return boxes of the canvas as boxes of the output: around the four warped corners, clipped, tiny ones dropped."""
    if not len(rows):
        return rows
    boxes = rows[:, :4].astype(np.float64)
    clip_to(boxes, mosaic.canvas_rect[2:])
    factor = np.array([[out_hw[1] / mosaic.size_hw[1]], [out_hw[0] / mosaic.size_hw[0]]])
    matrix = mosaic.matrix * factor
    linear = matrix[:, :2]
    # The box around a rotated box has the same centre; each half side is what both old ones reach in its direction.
    centre = (boxes[:, :2] + boxes[:, 2:]) @ (linear.T * 0.5) + matrix[:, 2]
    half = (boxes[:, 2:] - boxes[:, :2]) @ (np.abs(linear.T) * 0.5)
    warped = rows.copy()
    warped[:, :2] = centre - half
    warped[:, 2:4] = centre + half
    return keep_visible(warped, out_hw)


def _place(mosaic: Mosaic, corner: int, tile_hw: tuple[int, int]) -> Rect:
    """Return where a whole tile lies, parts beyond the canvas included."""
    x, y = mosaic.centre_xy
    height, width = tile_hw
    left, top = (x - width, x)[corner % 2], (y - height, y)[corner // 2]
    return left, top, left + width, top + height


def _view(matrix: NDArray[np.float64], out_hw: tuple[int, int]) -> Rect:
    """Return the pixels of the canvas that an output may touch."""
    inverse = np.asarray(cv2.invertAffineTransform(matrix), np.float64)
    # One more on each side: the right and lower neighbours that interpolation takes, and rounding.
    x1, y1, x2, y2 = _bounds(inverse, (0, 0, out_hw[1], out_hw[0]))
    return x1 - 1, y1 - 1, x2 + 1, y2 + 1


def _bounds(matrix: NDArray[np.float64], rect: Rect) -> Rect:
    """Return the upright rectangle, in whole pixels, around a mapped one."""
    (a, b, c), (d, e, f) = matrix.tolist()
    half_w, half_h = (rect[2] - rect[0]) / 2, (rect[3] - rect[1]) / 2
    x, y = rect[0] + half_w, rect[1] + half_h
    reach_x, reach_y = abs(a) * half_w + abs(b) * half_h, abs(d) * half_w + abs(e) * half_h
    centre_x, centre_y = a * x + b * y + c, d * x + e * y + f
    return (
        math.floor(centre_x - reach_x),
        math.floor(centre_y - reach_y),
        math.ceil(centre_x + reach_x),
        math.ceil(centre_y + reach_y),
    )


def _cut(rect: Rect, to: Rect) -> Rect:
    return max(rect[0], to[0]), max(rect[1], to[1]), min(rect[2], to[2]), min(rect[3], to[3])


def _empty(rect: Rect) -> bool:
    return rect[0] >= rect[2] or rect[1] >= rect[3]


def _union(rects: list[Rect]) -> Rect:
    if not rects:
        return 0, 0, 0, 0
    x1, y1, x2, y2 = zip(*rects, strict=True)
    return min(x1), min(y1), max(x2), max(y2)
