"""Fitting an image into the network's input, and taking boxes back out of it."""

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError
from boxwright.core.spec import Preprocessing

PAD_VALUE = 114

_MEAN_RGB = np.array([0.485, 0.456, 0.406], np.float32)
_STD_RGB = np.array([0.229, 0.224, 0.225], np.float32)


def letterbox(
    image: NDArray[np.uint8], size_hw: tuple[int, int], out: NDArray[np.uint8] | None = None
) -> tuple[NDArray[np.uint8], float]:
    """Return the image scaled to fit the top left of `size_hw`, the rest filled with 114, and the scale.

    Args:
        image: (H, W, 3) uint8.
        size_hw: the size to fill.
        out: an array of that size to write into, so that a batch needs no second copy.

    Example:
        >>> boxed, ratio = letterbox(np.zeros((100, 200, 3), np.uint8), (64, 64))
        >>> boxed.shape, ratio
        ((64, 64, 3), 0.32)
    """
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or image.size == 0:
        raise DataError(f"An image must be a uint8 array of shape (H, W, 3), not {image.dtype} {image.shape!r}.")
    height, width = image.shape[:2]
    ratio = min(size_hw[0] / height, size_hw[1] / width)
    inner_h, inner_w = max(int(height * ratio), 1), max(int(width * ratio), 1)
    boxed = np.empty((*size_hw, 3), np.uint8) if out is None else out
    if (inner_h, inner_w) == (height, width):
        boxed[:inner_h, :inner_w] = image
    else:
        boxed[:inner_h, :inner_w] = cv2.resize(image, (inner_w, inner_h), interpolation=cv2.INTER_LINEAR)
    boxed[inner_h:] = PAD_VALUE
    boxed[:inner_h, inner_w:] = PAD_VALUE
    return boxed, ratio


def to_input(batch: NDArray[np.uint8], preprocessing: Preprocessing) -> NDArray[np.float32]:
    """Return a (B, H, W, 3) BGR batch as the network's input: a (B, 3, H, W) fp32 view, channels last in memory."""
    values: NDArray[Any] = batch.astype(np.float32)
    if preprocessing == "legacy":
        values = (values[..., ::-1] / 255 - _MEAN_RGB) / _STD_RGB
    return values.transpose(0, 3, 1, 2)


def undo_letterbox(boxes_xyxy: NDArray[np.float32], ratio: float, size_hw: tuple[int, int]) -> NDArray[np.float32]:
    """Return boxes in pixels of the original image of `size_hw`, cut to it."""
    height, width = size_hw
    boxes: NDArray[np.float32] = (boxes_xyxy / np.float32(ratio)).astype(np.float32)
    return boxes.clip(0, np.array([width, height, width, height], np.float32))
