"""Brightness, contrast, saturation and hue of RGB images (HWC, 8-bit, or floats from 0 to 1) and grey ones (HW).

Against Pillow: brightness and contrast are equal up to 1 level (the grey mean of a contrast change may round the other
way), saturation differs by at most 1 level for factors up to 2. Hue works on OpenCV's 8-bit HSV, which is finer than
Pillow's: on COCO photos the mean difference is under 0.5 levels and the 99th percentile 5, in an image of glaring
colours under 3 levels and at most 20, of which at most 11 are ours. It takes a tenth of Pillow's time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch

from boxwright.core.errors import UsageError
from boxwright.vision.transforms.base import Range, Transform, check_range, spread, uniform
from boxwright.vision.transforms.image import Pixels, apply, channels


def colour_pixels(pixels: Pixels) -> Pixels:
    """Return the pixels if they are grey or RGB, 8-bit or float; else raise an error."""
    if channels(pixels) not in (1, 3):
        raise UsageError(
            f"Colour transforms need 1 or 3 channels; the image has {channels(pixels)}. Convert it to RGB."
        )
    if pixels.dtype not in (np.uint8, np.float32, np.float64):
        raise UsageError(f"Colour transforms need 8-bit or float images; this one is {pixels.dtype}. Convert it first.")
    return pixels


def look_up(pixels: Pixels, table: Pixels) -> Pixels:
    """Return 8-bit pixels with every value exchanged for the one the table has for it: (256,) or (256, channels)."""
    shaped = table.reshape(1, 256, -1) if table.ndim == 2 else table
    return cv2.LUT(pixels, shaped).reshape(pixels.shape)


def grey(pixels: Pixels) -> Pixels:
    """Return the brightness that the eye sees, HW: 0.299 red, 0.587 green, 0.114 blue."""
    if channels(pixels) == 1:
        return pixels.reshape(pixels.shape[:2])
    if pixels.dtype == np.float64:
        return np.asarray(pixels @ np.array([0.299, 0.587, 0.114]))
    return cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_RGB2GRAY)


def _from_constant(pixels: Pixels, base: float, factor: float) -> Pixels:
    """Return the pixels moved away from `base` by a factor, cutting off fractions as Pillow does."""
    if pixels.dtype == np.uint8:
        values = np.float32(base) + np.float32(factor) * (np.arange(256, dtype=np.float32) - np.float32(base))
        return look_up(pixels, values.clip(0, 255).astype(np.uint8))
    return (base + factor * (pixels - base)).clip(0, 1).astype(pixels.dtype)


def blend(pixels: Pixels, other: Pixels, factor: float) -> Pixels:
    """Return `other` moved towards the pixels, and beyond them for a factor above 1."""
    if pixels.dtype == np.uint8:
        # Pillow cuts fractions off where OpenCV rounds; the shift by just under a half does that too.
        return cv2.addWeighted(pixels, factor, other, 1 - factor, -0.499).reshape(pixels.shape)
    return (other + factor * (pixels - other)).clip(0, 1).astype(pixels.dtype)


def rgb_to_grayscale(img: Any, num_output_channels: int = 1) -> Any:
    """Return the image without colour: HW, or HWC with three equal channels; a tensor stays CHW.

    Example:
        >>> rgb_to_grayscale(np.full((1, 2, 3), 9, np.uint8))
        array([[9, 9]], dtype=uint8)
    """
    _check_channels(num_output_channels)

    def change(pixels: Pixels) -> Pixels:
        single = grey(colour_pixels(pixels))
        return single if num_output_channels == 1 else np.repeat(single[..., None], 3, axis=2)

    return apply(img, change)


def adjust_brightness(img: Any, brightness_factor: float) -> Any:
    """Return the image darker (factor below 1, 0 is black) or brighter.

    Example:
        >>> adjust_brightness(np.array([[10, 200]], np.uint8), 1.5)
        array([[ 15, 255]], dtype=uint8)
    """
    check_range("brightness_factor", 0, brightness_factor)
    return apply(img, lambda pixels: _from_constant(colour_pixels(pixels), 0.0, float(brightness_factor)))


def adjust_contrast(img: Any, contrast_factor: float) -> Any:
    """Return the image nearer to its mean grey (factor below 1, 0 is plain grey) or farther from it."""
    check_range("contrast_factor", 0, contrast_factor)

    def change(pixels: Pixels) -> Pixels:
        mean = float(grey(colour_pixels(pixels)).mean())
        return _from_constant(pixels, int(mean + 0.5) if pixels.dtype == np.uint8 else mean, float(contrast_factor))

    return apply(img, change)


def adjust_saturation(img: Any, saturation_factor: float) -> Any:
    """Return the image with paler (factor below 1, 0 is grey) or stronger colours; a grey image stays as it is."""
    check_range("saturation_factor", 0, saturation_factor)

    def change(pixels: Pixels) -> Pixels:
        if channels(colour_pixels(pixels)) == 1:
            return pixels
        return blend(pixels, np.repeat(grey(pixels)[..., None], 3, axis=2), float(saturation_factor))

    return apply(img, change)


def adjust_hue(img: Any, hue_factor: float) -> Any:
    """Return the image with its colours moved along the circle of hues; a grey image stays as it is.

    Args:
        img: a Pillow image, an array (HWC or HW) or a tensor (CHW).
        hue_factor: part of the circle, from -0.5 to 0.5; both ends give the opposite colours.
    """
    check_range("hue_factor", -0.5, hue_factor, 0.5)

    def change(pixels: Pixels) -> Pixels:
        if channels(colour_pixels(pixels)) == 1:
            return pixels
        if pixels.dtype == np.uint8:
            hsv = cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_RGB2HSV_FULL)
            same = np.arange(256)
            table = np.stack([(same + round(hue_factor * 256)) % 256, same, same], axis=1).astype(np.uint8)
            return cv2.cvtColor(look_up(hsv, table), cv2.COLOR_HSV2RGB_FULL)
        hsv = cv2.cvtColor(pixels.astype(np.float32), cv2.COLOR_RGB2HSV)
        hsv[..., 0] = (hsv[..., 0] + hue_factor * 360) % 360
        return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB).astype(pixels.dtype)

    return apply(img, change)


def adjust_gamma(img: Any, gamma: float, gain: float = 1) -> Any:
    """Return the image with each value raised to a power, from 0 (black) to 1: darker for a `gamma` above 1.

    Args:
        img: a Pillow image, an array (HWC or HW) or a tensor (CHW).
        gamma: the power, 0 or more.
        gain: factor of the result.

    Example:
        >>> adjust_gamma(np.array([[0, 64, 255]], np.uint8), 2)
        array([[  0,  16, 255]], dtype=uint8)
    """
    check_range("gamma", 0, gamma)

    def change(pixels: Pixels) -> Pixels:
        if colour_pixels(pixels).dtype == np.uint8:
            # Just under 256, so that the steps are even and 255 stays 255.
            table = (255 + 1 - 1e-3) * gain * (np.arange(256) / 255.0) ** gamma
            return look_up(pixels, table.clip(0, 255).astype(np.uint8))
        return (gain * pixels**gamma).clip(0, 1).astype(pixels.dtype)

    return apply(img, change)


def _check_channels(count: int) -> None:
    if count not in (1, 3):
        raise UsageError(f"num_output_channels={count!r} must be 1 or 3.")


@dataclass(eq=False, repr=False)
class ColorJitter(Transform):
    """Changes brightness, contrast, saturation and hue at random, in random order.

    Args:
        brightness: one number b for factors from max(0, 1 - b) to 1 + b, or (smallest, largest).
        contrast: the same.
        saturation: the same.
        hue: one number h up to 0.5 for shifts from -h to h, or (smallest, largest).

    Example:
        >>> ColorJitter(0.4, 0.4, 0.4, 0.1)(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    brightness: Range = 0
    contrast: Range = 0
    saturation: Range = 0
    hue: Range = 0

    def __post_init__(self) -> None:
        self.brightness = _factors("brightness", self.brightness)
        self.contrast = _factors("contrast", self.contrast)
        self.saturation = _factors("saturation", self.saturation)
        self.hue = _factors("hue", self.hue, middle=0.0, low=-0.5, high=0.5)

    @staticmethod
    def get_params(
        brightness: Sequence[float] | None,
        contrast: Sequence[float] | None,
        saturation: Sequence[float] | None,
        hue: Sequence[float] | None,
    ) -> tuple[torch.Tensor, float | None, float | None, float | None, float | None]:
        """Return a random order of the four changes and the factor of each; None where a range is None."""
        order = torch.randperm(4)
        first, second, third, fourth = (
            None if limits is None else uniform(limits[0], limits[1])
            for limits in (brightness, contrast, saturation, hue)
        )
        return order, first, second, third, fourth

    def change(self, img: Any) -> Any:
        """Return the changed image."""
        order, *factors = self.get_params(self.brightness, self.contrast, self.saturation, self.hue)
        changes: tuple[Callable[[Any, float], Any], ...]
        changes = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)
        for index in order.tolist():
            factor = factors[index]
            if factor is not None:
                img = changes[index](img, factor)
        return img


def _factors(
    name: str, value: Range, middle: float = 1.0, low: float = 0.0, high: float = float("inf")
) -> tuple[float, float] | None:
    first, last = spread(name, value, middle)
    first = max(first, 0.0) if middle == 1.0 and isinstance(value, int | float) else first
    if not low <= first <= last <= high:
        raise UsageError(f"{name}={value!r} must lie between {low} and {high}, the smaller number first.")
    return None if first == last == middle else (first, last)


@dataclass(eq=False, repr=False)
class Grayscale(Transform):
    """Removes the colour; arguments as in `rgb_to_grayscale`.

    Example:
        >>> Grayscale(3)(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    function = staticmethod(rgb_to_grayscale)
    num_output_channels: int = 1

    def __post_init__(self) -> None:
        _check_channels(self.num_output_channels)


@dataclass(eq=False, repr=False)
class RandomGrayscale(Transform):
    """Removes the colour, but no channels, with probability `p`.

    Example:
        >>> RandomGrayscale(p=1)(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    p: float = 0.1

    def change(self, img: Any) -> Any:
        """Return the grey image."""
        return rgb_to_grayscale(img, channels(img))
