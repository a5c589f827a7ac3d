"""Mirror images."""

from typing import Any

import cv2
import numpy as np
from torch import nn

from boxwright.vision.transforms import chance
from boxwright.vision.transforms.image import Pixels, apply, channels


def hflip(img: Any) -> Any:
    """Return the image with left and right exchanged.

    Example:
        >>> hflip(np.array([[1, 2, 3]], np.uint8))
        array([[3, 2, 1]], dtype=uint8)
    """
    return apply(img, lambda pixels: _flip(pixels, 1))


def vflip(img: Any) -> Any:
    """Return the image with top and bottom exchanged."""
    return apply(img, lambda pixels: _flip(pixels, 0))


def _flip(pixels: Pixels, axis: int) -> Pixels:
    if pixels.dtype == np.uint8 and channels(pixels) in (1, 3, 4):
        # 30 times as fast as numpy's copy of a reversed view.
        return cv2.flip(pixels, axis).reshape(pixels.shape)
    return np.ascontiguousarray(np.flip(pixels, axis))


class RandomHorizontalFlip(nn.Module):
    """Gives the image with left and right exchanged, with probability `p`.

    Example:
        >>> RandomHorizontalFlip(p=1)(np.array([[1, 2, 3]], np.uint8))
        array([[3, 2, 1]], dtype=uint8)
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = chance.probability(p)

    def forward(self, img: Any) -> Any:
        """Return the image or its mirror image."""
        return hflip(img) if chance.happens(self.p) else img

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"p={self.p}"


class RandomVerticalFlip(nn.Module):
    """Gives the image with top and bottom exchanged, with probability `p`.

    Example:
        >>> RandomVerticalFlip(p=1)(np.array([[1], [2]], np.uint8))
        array([[2],
               [1]], dtype=uint8)
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = chance.probability(p)

    def forward(self, img: Any) -> Any:
        """Return the image as it is or upside down."""
        return vflip(img) if chance.happens(self.p) else img

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"p={self.p}"
