"""Blurring and sharpening."""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from torch import nn

from boxwright.core.errors import UsageError
from boxwright.vision.transforms import chance
from boxwright.vision.transforms.colour import blend, colour_pixels
from boxwright.vision.transforms.image import Pixels, apply, for_opencv, like, pair

# Pillow's SMOOTH filter: the pixel counts as much as five of its neighbours.
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


def gaussian_blur(img: Any, kernel_size: int | Sequence[int], sigma: float | Sequence[float] | None = None) -> Any:
    """Return the blurred image; at the edges it is mirrored without repeating the edge.

    OpenCV weighs 8-bit images with 8-bit weights, so results differ from a computation in floats by 2 levels at most.

    Args:
        img: a Pillow image, an array (HWC or HW) or a tensor (CHW).
        kernel_size: odd width of the window in pixels, or (along x, along y).
        sigma: standard deviation in pixels, or (along x, along y); by default 0.15 kernel_size + 0.35.

    Raises:
        UsageError: the kernel is even, or sigma not above 0.

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
    """Return the image softer (factor below 1, 0 is smoothed) or sharper; within 1 level of Pillow for 8-bit images.

    Raises:
        UsageError: the factor is negative.
    """
    if sharpness_factor < 0:
        raise UsageError(f"sharpness_factor={sharpness_factor!r} must not be negative.")

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


class GaussianBlur(nn.Module):
    """Gives the image blurred with a random sigma.

    Args:
        kernel_size: odd width of the window in pixels, or (along x, along y).
        sigma: (smallest, largest), or one number for always the same.

    Example:
        >>> GaussianBlur(3)(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)) -> None:
        super().__init__()
        self.kernel_size = _window(kernel_size)
        self.sigma = chance.limits("sigma", (sigma, sigma) if isinstance(sigma, int | float) else sigma)

    @staticmethod
    def get_params(sigma_min: float, sigma_max: float) -> float:
        """Return a random sigma."""
        return chance.uniform(sigma_min, sigma_max)

    def forward(self, img: Any) -> Any:
        """Return the blurred image."""
        return gaussian_blur(img, self.kernel_size, self.get_params(*self.sigma))

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"kernel_size={self.kernel_size}, sigma={self.sigma}"


class RandomAdjustSharpness(nn.Module):
    """Gives the image softer or sharper with probability `p`; the factor as in `adjust_sharpness`.

    Example:
        >>> RandomAdjustSharpness(2, p=1)(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        super().__init__()
        if sharpness_factor < 0:
            raise UsageError(f"sharpness_factor={sharpness_factor!r} must not be negative.")
        self.sharpness_factor = sharpness_factor
        self.p = chance.probability(p)

    def forward(self, img: Any) -> Any:
        """Return the image as it is or changed."""
        return adjust_sharpness(img, self.sharpness_factor) if chance.happens(self.p) else img

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"sharpness_factor={self.sharpness_factor}, p={self.p}"
