"""Boxes as plain arrays: xyxy is corners in pixels, cxcywh centre and size, xywh corner and size."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.floating[Any]]


def cxcywh_to_xyxy(boxes_cxcywh: FloatArray) -> FloatArray:
    """Return corners of boxes given by centre and size, shape (..., 4)."""
    half = boxes_cxcywh[..., 2:4] * 0.5
    centre = boxes_cxcywh[..., 0:2]
    return np.concatenate((centre - half, centre + half), axis=-1)


def xyxy_to_cxcywh(boxes_xyxy: FloatArray) -> FloatArray:
    """Return centre and size of boxes given by corners, shape (..., 4)."""
    low, high = boxes_xyxy[..., 0:2], boxes_xyxy[..., 2:4]
    return np.concatenate(((low + high) * 0.5, high - low), axis=-1)


def xyxy_to_xywh(boxes_xyxy: FloatArray) -> FloatArray:
    """Return top-left corner and size of boxes given by corners, shape (..., 4)."""
    low, high = boxes_xyxy[..., 0:2], boxes_xyxy[..., 2:4]
    return np.concatenate((low, high - low), axis=-1)


def xywh_to_xyxy(boxes_xywh: FloatArray) -> FloatArray:
    """Return corners of boxes given by top-left corner and size, shape (..., 4)."""
    low, size = boxes_xywh[..., 0:2], boxes_xywh[..., 2:4]
    return np.concatenate((low, low + size), axis=-1)


def clip_xyxy(boxes_xyxy: FloatArray, size_hw: tuple[int, int]) -> FloatArray:
    """Return the boxes cut to an image of `size_hw`."""
    height, width = size_hw
    return boxes_xyxy.clip(0, np.array([width, height, width, height], dtype=boxes_xyxy.dtype))


def area_xyxy(boxes_xyxy: FloatArray) -> FloatArray:
    """Return the areas; a box with a negative side has area 0."""
    size = (boxes_xyxy[..., 2:4] - boxes_xyxy[..., 0:2]).clip(0)
    area: FloatArray = size[..., 0] * size[..., 1]
    return area
