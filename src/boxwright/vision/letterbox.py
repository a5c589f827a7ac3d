"""Fitting images into the network's input, and mapping boxes back to the image."""

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError
from boxwright.core.spec import Preprocessing

PAD_VALUE = 114

_MEAN_RGB = np.array([0.485, 0.456, 0.406], np.float32)
_STD_RGB = np.array([0.229, 0.224, 0.225], np.float32)


def fit_ratio(image_hw: tuple[int, int], size_hw: tuple[int, int]) -> float:
    """Return the factor that scales an image to fit `size_hw`."""
    return min(size_hw[0] / image_hw[0], size_hw[1] / image_hw[1])


def fit_hw(image_hw: tuple[int, int], size_hw: tuple[int, int]) -> tuple[int, int]:
    """Return height and width of an image scaled to fit `size_hw`.

    Example:
        >>> fit_hw((480, 640), (416, 416))
        (312, 416)
    """
    ratio = fit_ratio(image_hw, size_hw)
    return max(int(image_hw[0] * ratio), 1), max(int(image_hw[1] * ratio), 1)


def resize(image: NDArray[np.uint8], size_hw: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the image at another size (bilinear); the image itself when it has that size."""
    if image.shape[:2] == size_hw:
        return image
    return np.asarray(cv2.resize(image, size_hw[::-1], interpolation=cv2.INTER_LINEAR), np.uint8)


def shrink(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Return the image fitted into a square, for people to look at; the image itself when it is not larger."""
    scale = side / max(image.shape[:2])
    if scale >= 1:
        return image
    size = (max(round(image.shape[1] * scale), 1), max(round(image.shape[0] * scale), 1))
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)


def paste(image: NDArray[np.uint8], inner_hw: tuple[int, int], out: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Write an image of size `inner_hw` to the top left of `out`, fill the rest with 114, return the inner part."""
    height, width = inner_hw
    inner = out[:height, :width]
    if image.shape == inner.shape:
        inner[:] = image
    else:
        cv2.resize(image, (width, height), dst=inner, interpolation=cv2.INTER_LINEAR)
    out[height:] = PAD_VALUE
    out[:height, width:] = PAD_VALUE
    return inner


def letterbox(
    image: NDArray[np.uint8], size_hw: tuple[int, int], out: NDArray[np.uint8] | None = None
) -> tuple[NDArray[np.uint8], float]:
    """Return the image scaled to fit the top left of `size_hw`, the rest filled with 114, and the scale.

    Args:
        image: (H, W, 3) uint8.
        size_hw: the size to fill.
        out: a C-contiguous array of that size to write into, so that a batch needs no second copy.

    Example:
        >>> boxed, ratio = letterbox(np.zeros((100, 200, 3), np.uint8), (64, 64))
        >>> boxed.shape, ratio
        ((64, 64, 3), 0.32)
    """
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or image.size == 0:
        raise DataError(f"An image must be a uint8 array of shape (H, W, 3), not {image.dtype} {image.shape!r}.")
    image_hw = (image.shape[0], image.shape[1])
    boxed = np.empty((*size_hw, 3), np.uint8) if out is None else out
    paste(image, fit_hw(image_hw, size_hw), boxed)
    return boxed, fit_ratio(image_hw, size_hw)


def to_input(batch: NDArray[np.uint8], preprocessing: Preprocessing) -> NDArray[np.float32]:
    """Return a (B, H, W, 3) BGR batch as the network's input: a (B, 3, H, W) fp32 view, channels last in memory."""
    values: NDArray[Any] = batch.astype(np.float32)
    if preprocessing == "legacy":
        values = (values[..., ::-1] / 255 - _MEAN_RGB) / _STD_RGB
    return values.transpose(0, 3, 1, 2)


def undo_letterbox(boxes_xyxy: NDArray[np.float32], ratio: float, size_hw: tuple[int, int]) -> NDArray[np.float32]:
    """Return boxes in pixels of the original image of `size_hw`, clipped to it."""
    height, width = size_hw
    boxes: NDArray[np.float32] = (boxes_xyxy / np.float32(ratio)).astype(np.float32)
    return boxes.clip(0, np.array([width, height, width, height], np.float32))
