"""Changes of single values: inverted, fewer levels, stretched. 8-bit results are equal to Pillow's, value by value."""

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from boxwright.core.errors import UsageError
from boxwright.vision.transforms.base import Transform, check_range
from boxwright.vision.transforms.colour import colour_pixels, look_up
from boxwright.vision.transforms.image import Pixels, apply

_SAME = np.arange(256, dtype=np.uint8)


def invert(img: Any) -> Any:
    """Return the negative of the image."""
    return apply(img, lambda pixels: _top(colour_pixels(pixels)) - pixels)


def posterize(img: Any, bits: int) -> Any:
    """Return the image with only the upper `bits` of each 8-bit value."""
    check_range("bits", 0, bits, 8)
    mask = np.uint8(256 - 2 ** (8 - bits) if bits else 0)
    return apply(img, lambda pixels: eight_bit("posterize", pixels) & mask)


def solarize(img: Any, threshold: float) -> Any:
    """Return the image with all values from `threshold` up inverted."""

    def change(pixels: Pixels) -> Pixels:
        if colour_pixels(pixels).dtype == np.uint8:
            return look_up(pixels, np.where(np.arange(256) < threshold, _SAME, 255 - _SAME).astype(np.uint8))
        return np.where(pixels < threshold, pixels, _top(pixels) - pixels)

    return apply(img, change)


def autocontrast(img: Any) -> Any:
    """Return the image with each channel stretched to the full range; a plain channel stays as it is."""

    def change(pixels: Pixels) -> Pixels:
        planes = cv2.split(colour_pixels(pixels))
        low = np.array([plane.min() for plane in planes])
        high = np.array([plane.max() for plane in planes])
        if pixels.dtype == np.uint8:
            tables = [_stretch(int(first), int(last)) for first, last in zip(low, high, strict=True)]
            return look_up(pixels, np.stack(tables, axis=1))
        plain = high <= low
        low[plain], high[plain] = 0, 1
        stretched: Pixels = (pixels - low) / (high - low)
        return stretched.clip(0, 1).astype(pixels.dtype)

    return apply(img, change)


def equalize(img: Any) -> Any:
    """Return the image with each channel's values spread evenly over the range; for 8-bit images."""

    def change(pixels: Pixels) -> Pixels:
        planes = cv2.split(eight_bit("equalize", pixels))
        tables = [_spread(np.bincount(plane.ravel(), minlength=256)) for plane in planes]
        return look_up(pixels, np.stack(tables, axis=1))

    return apply(img, change)


def _stretch(low: int, high: int) -> Pixels:
    if high <= low:
        return _SAME
    scale = 255.0 / (high - low)
    return (np.arange(256) * scale - low * scale).clip(0, 255).astype(np.uint8)


def _spread(counts: Pixels) -> Pixels:
    used = counts[counts > 0]
    step = int(used[:-1].sum()) // 255
    if step == 0:
        return _SAME
    below = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return ((step // 2 + below) // step).clip(0, 255).astype(np.uint8)


def _top(pixels: Pixels) -> Any:
    return pixels.dtype.type(255 if pixels.dtype == np.uint8 else 1)


def eight_bit(name: str, pixels: Pixels) -> Pixels:
    """Return the pixels if they are 8-bit, grey or RGB; else raise an error."""
    if colour_pixels(pixels).dtype != np.uint8:
        raise UsageError(f"{name} needs an 8-bit image; this one is {pixels.dtype}. Use it before ToTensor.")
    return pixels


@dataclass(eq=False, repr=False)
class RandomInvert(Transform):
    """Inverts the image with probability `p`.

    Example:
        >>> RandomInvert(p=1)(np.array([[0, 200]], np.uint8))
        array([[255,  55]], dtype=uint8)
    """

    function = staticmethod(invert)
    p: float = 0.5


@dataclass(eq=False, repr=False)
class RandomPosterize(Transform):
    """Keeps only the upper `bits` of each 8-bit value, with probability `p`.

    Example:
        >>> RandomPosterize(2, p=1)(np.array([[255, 100]], np.uint8))
        array([[192,  64]], dtype=uint8)
    """

    function = staticmethod(posterize)
    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        check_range("bits", 0, self.bits, 8)
        super().__post_init__()


@dataclass(eq=False, repr=False)
class RandomSolarize(Transform):
    """Inverts the values from `threshold` up, with probability `p`.

    Example:
        >>> RandomSolarize(128, p=1)(np.array([[100, 200]], np.uint8))
        array([[100,  55]], dtype=uint8)
    """

    function = staticmethod(solarize)
    threshold: float
    p: float = 0.5


@dataclass(eq=False, repr=False)
class RandomAutocontrast(Transform):
    """Stretches each channel to the full range with probability `p`.

    Example:
        >>> RandomAutocontrast(p=1)(np.array([[10, 20, 30]], np.uint8))
        array([[  0, 127, 255]], dtype=uint8)
    """

    function = staticmethod(autocontrast)
    p: float = 0.5


@dataclass(eq=False, repr=False)
class RandomEqualize(Transform):
    """Spreads the values of each channel evenly with probability `p`.

    Example:
        >>> RandomEqualize(p=1)(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    function = staticmethod(equalize)
    p: float = 0.5
