"""Blurring and sharpening."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from boxwright.core.errors import UsageError
from boxwright.vision.transforms.base import Range, Transform, check_limits, check_range, pair, uniform
from boxwright.vision.transforms.colour import blend, colour_pixels
from boxwright.vision.transforms.image import Pixels, apply, for_opencv, like

# Pillow's SMOOTH filter: the pixel counts as much as five of its neighbours.
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


def gaussian_blur(img: Any, kernel_size: int | Sequence[int], sigma: float | Sequence[float] | None = None) -> Any:
    """Return the blurred image; at the edges it is mirrored without repeating the edge.

    OpenCV weighs 8-bit images with 8-bit weights, so results differ from a computation in floats by 2 levels at most.

    Args:
        img: a Pillow image, an array (HWC or HW) or a tensor (CHW).
        kernel_size: odd width of the window in pixels, or (along x, along y).
        sigma: standard deviation in pixels, or (along x, along y); by default 0.15 kernel_size + 0.35.

    Example:
        >>> int(gaussian_blur(np.eye(3, dtype=np.uint8) * 90, 3, 1.0)[1, 1])
        32
    """
    window_x, window_y = _window(kernel_size)
    if sigma is None:
        sigma_x, sigma_y = 0.15 * window_x + 0.35, 0.15 * window_y + 0.35
    else:
        values = (sigma,) if isinstance(sigma, int | float) else tuple(sigma)
        if len(values) not in (1, 2) or min(values) <= 0:
            raise UsageError(f"sigma={sigma!r} must be one or two numbers above 0.")
        sigma_x, sigma_y = float(values[0]), float(values[-1])

    def change(pixels: Pixels) -> Pixels:
        blurred = cv2.GaussianBlur(
            for_opencv(pixels), (window_x, window_y), sigma_x, sigmaY=sigma_y, borderType=cv2.BORDER_REFLECT_101
        )
        return like(pixels, blurred)

    return apply(img, change)


def adjust_sharpness(img: Any, sharpness_factor: float) -> Any:
    """Return the image softer (factor below 1, 0 is smoothed) or sharper; within 1 level of Pillow for 8-bit images."""
    check_range("sharpness_factor", 0, sharpness_factor)

    def change(pixels: Pixels) -> Pixels:
        if min(colour_pixels(pixels).shape[:2]) < 3:
            return pixels
        smooth = like(pixels, cv2.filter2D(pixels, -1, _SMOOTH))
        # The outermost pixels lack neighbours and stay as they are.
        for edge in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
            smooth[edge] = pixels[edge]
        return blend(pixels, smooth, float(sharpness_factor))

    return apply(img, change)


def _window(kernel_size: int | Sequence[int]) -> tuple[int, int]:
    size = pair(kernel_size, "kernel_size")
    if size[0] % 2 == 0 or size[1] % 2 == 0:
        raise UsageError(f"kernel_size={kernel_size!r} must be odd.")
    return size


@dataclass(eq=False, repr=False)
class GaussianBlur(Transform):
    """Blurs the image with a random sigma.

    Args:
        kernel_size: odd width of the window in pixels, or (along x, along y).
        sigma: (smallest, largest), or one number for a fixed sigma.

    Example:
        >>> GaussianBlur(3)(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    kernel_size: int | Sequence[int]
    sigma: Range = (0.1, 2.0)

    def __post_init__(self) -> None:
        self.kernel_size = _window(self.kernel_size)
        fixed = isinstance(self.sigma, int | float)
        self.sigma = check_limits("sigma", (self.sigma, self.sigma) if fixed else self.sigma)

    @staticmethod
    def get_params(sigma_min: float, sigma_max: float) -> float:
        """Return a random sigma."""
        return uniform(sigma_min, sigma_max)

    def change(self, img: Any) -> Any:
        """Return the blurred image."""
        return gaussian_blur(img, self.kernel_size, self.get_params(*self.sigma))


@dataclass(eq=False, repr=False)
class RandomAdjustSharpness(Transform):
    """Softens or sharpens the image with probability `p`; the factor as in `adjust_sharpness`.

    Example:
        >>> RandomAdjustSharpness(2, p=1)(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    function = staticmethod(adjust_sharpness)
    sharpness_factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        check_range("sharpness_factor", 0, self.sharpness_factor)
        super().__post_init__()
