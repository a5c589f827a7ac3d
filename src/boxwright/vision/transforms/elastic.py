"""Images bent like a reflection in moving water."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from torch import nn

from boxwright.core.errors import UsageError
from boxwright.vision.transforms.base import Range, Transform
from boxwright.vision.transforms.image import (
    Fill,
    InterpolationMode,
    Mode,
    Pixels,
    apply,
    fill_values,
    for_opencv,
    size_hw,
)
from boxwright.vision.transforms.warp import warp_mode


def elastic_transform(
    img: Any, displacement: torch.Tensor, interpolation: Mode = InterpolationMode.BILINEAR, fill: Fill = 0
) -> Any:
    """Return the image with each pixel taken from a place nearby.

    Args:
        img: a Pillow image, an array (HWC or HW) or a tensor (CHW).
        displacement: (1, H, W, 2): how far away along x and y, in halves of the image's width and height.
        interpolation: `nearest`, `bilinear` or `bicubic`.
        fill: value of places outside the image, or one per channel.

    Example:
        >>> elastic_transform(np.array([[1, 2]], np.uint8), torch.zeros(1, 1, 2, 2))
        array([[1, 2]], dtype=uint8)
    """
    mode = warp_mode(interpolation)
    height, width = size_hw(img)
    if not isinstance(displacement, torch.Tensor) or tuple(displacement.shape) != (1, height, width, 2):
        got = tuple(displacement.shape) if isinstance(displacement, torch.Tensor) else type(displacement).__name__
        raise UsageError(f"displacement must be a tensor of shape (1, {height}, {width}, 2), not {got!r}.")
    middle_x = (2 * torch.arange(width, dtype=torch.float32) + 1) / width - 1
    middle_y = (2 * torch.arange(height, dtype=torch.float32) + 1) / height - 1
    rows, columns = torch.meshgrid(middle_y, middle_x, indexing="ij")
    grid = torch.stack((columns, rows), dim=-1)[None] + displacement

    def change(pixels: Pixels) -> Pixels:
        return _sample(pixels, grid, mode, fill_values(fill, for_opencv(pixels)))

    return apply(img, change)


def _sample(pixels: Pixels, grid: torch.Tensor, mode: InterpolationMode, fill: tuple[float, ...]) -> Pixels:
    wide = pixels[..., None] if pixels.ndim == 2 else pixels
    source = torch.from_numpy(wide.astype(np.float64 if pixels.dtype == np.float64 else np.float32))
    # A channel of ones shows what part of a sample comes from inside the image.
    planes = torch.cat([source.permute(2, 0, 1), torch.ones(1, *wide.shape[:2], dtype=source.dtype)])[None]
    sampled = nn.functional.grid_sample(planes, grid.to(source.dtype), mode.value, "zeros", align_corners=False)[0]
    values, inside = sampled[:-1], sampled[-1:]
    empty = torch.tensor(fill, dtype=source.dtype)[:, None, None]
    if mode is InterpolationMode.NEAREST:
        values = torch.where(inside < 0.5, empty, values)
    else:
        values = values * inside + (1 - inside) * empty
    result: Pixels = values.permute(1, 2, 0).numpy().reshape(pixels.shape)
    if np.issubdtype(pixels.dtype, np.floating):
        return result.astype(pixels.dtype)
    limits = np.iinfo(pixels.dtype)
    return np.rint(result).clip(limits.min, limits.max).astype(pixels.dtype)


@dataclass(eq=False, repr=False)
class ElasticTransform(Transform):
    """Bends the image at random.

    Args:
        alpha: strength in pixels, or (along x, along y).
        sigma: smoothness in pixels, or (along x, along y); 0 for none.
        interpolation: as in `elastic_transform`, like `fill`.

    Example:
        >>> ElasticTransform(alpha=20.0)(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    alpha: Range = 50.0
    sigma: Range = 5.0
    interpolation: Mode = InterpolationMode.BILINEAR
    fill: Fill = 0

    def __post_init__(self) -> None:
        self.alpha = _both("alpha", self.alpha)
        self.sigma = _both("sigma", self.sigma)
        self.interpolation = warp_mode(self.interpolation)

    @staticmethod
    def get_params(alpha: Sequence[float], sigma: Sequence[float], size: Sequence[int]) -> torch.Tensor:
        """Return a random displacement (1, H, W, 2); `size` is (height, width)."""
        height, width = size
        moved = []
        for strength, smooth, side in ((alpha[0], sigma[0], width), (alpha[1], sigma[1], height)):
            noise = (torch.rand([1, 1, height, width]) * 2 - 1)[0, 0].numpy()
            if smooth > 0:
                window = int(8 * smooth + 1) | 1
                noise = cv2.GaussianBlur(
                    noise,
                    (window, window),
                    sigma[0] or smooth,
                    sigmaY=sigma[1] or smooth,
                    borderType=cv2.BORDER_REFLECT_101,
                ).reshape(height, width)
            moved.append(torch.from_numpy(noise) * strength / side)
        return torch.stack(moved, dim=-1)[None]

    def change(self, img: Any) -> Any:
        """Return the bent image."""
        displacement = self.get_params(self.alpha, self.sigma, size_hw(img))
        return elastic_transform(img, displacement, self.interpolation, self.fill)


def _both(name: str, value: Range) -> list[float]:
    values = [value, value] if isinstance(value, int | float) else list(value)
    if len(values) != 2 or min(values) < 0:
        raise UsageError(f"{name}={value!r} must be one or two numbers of at least 0.")
    return [float(number) for number in values]
