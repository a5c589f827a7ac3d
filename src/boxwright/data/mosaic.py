"""Mosaic: four images around a point, rotated, scaled, sheared and shifted, with one warp.

The published way pastes four images on a canvas of twice the input size and warps that. Here only the part of the
canvas that the output can see is pasted, images that it can't see are never asked for, and only the part of the output
that shows an image is warped. The pixels are the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from boxwright.data.augment import Image, Rows, Scratch
from boxwright.data.recipe import AugmentRecipe
from boxwright.data.tile import Tile
from boxwright.vision.letterbox import PAD_VALUE

Rect = tuple[int, int, int, int]
"""x1, y1, x2, y2 in whole pixels."""
Matrix = NDArray[np.float64]
"""An affine map, (2, 3)."""


@dataclass(frozen=True, slots=True, eq=False)
class Mosaic:
    """One drawn mosaic.

    Attributes:
        size_hw: the input size; the canvas has twice that.
        centre_xy: where the four images meet on the canvas.
        matrix: from pixels of the canvas to pixels of an output of `size_hw`.
    """

    size_hw: tuple[int, int]
    centre_xy: tuple[int, int]
    matrix: Matrix

    @property
    def canvas_hw(self) -> tuple[int, int]:
        """Height and width of the canvas."""
        return 2 * self.size_hw[0], 2 * self.size_hw[1]


def draw_mosaic(rng: Generator, recipe: AugmentRecipe, size_hw: tuple[int, int]) -> Mosaic:
    """Return where four images meet and how the whole is warped."""
    height, width = size_hw
    u = rng.random(8).tolist()
    centre_xy = int((0.5 + u[0]) * width), int((0.5 + u[1]) * height)
    angle = math.radians((2 * u[2] - 1) * recipe.degrees)
    scale = recipe.scale[0] + u[3] * (recipe.scale[1] - recipe.scale[0])
    shear_x = math.tan(math.radians((2 * u[4] - 1) * recipe.shear))
    shear_y = math.tan(math.radians((2 * u[5] - 1) * recipe.shear))
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    turn = np.array([[cos, sin], [-sin, cos]])
    linear = np.array([[1, shear_x], [shear_y, 1]]) @ turn
    offset = np.array([(2 * u[6] - 1) * recipe.translate * width, (2 * u[7] - 1) * recipe.translate * height])
    if recipe.anchor == "centre":
        # The middle of the canvas goes to the middle of the output.
        offset += np.array([width / 2, height / 2]) - linear @ np.array([width, height])
    return Mosaic(size_hw, centre_xy, np.column_stack((linear, offset)))


def place_tile(corner: int, centre_xy: tuple[int, int], tile_hw: tuple[int, int], canvas_hw: tuple[int, int]) -> Rect:
    """Return where a whole tile lies on the canvas, parts beyond the canvas included.

    Args:
        corner: 0 top left of the centre, 1 top right, 2 bottom left, 3 bottom right.
        centre_xy: where the tiles meet.
        tile_hw: the tile's size.
        canvas_hw: the canvas' size.
    """
