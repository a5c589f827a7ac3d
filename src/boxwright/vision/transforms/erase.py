"""Random gaps in images, as in "Random Erasing Data Augmentation" (Zhong and others, 2017)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from boxwright.core.errors import UsageError
from boxwright.vision.transforms import chance


def erase(img: torch.Tensor, i: int, j: int, h: int, w: int, v: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """Return the tensor with a rectangle set to `v`.

    Args:
        img: CHW, or with leading batch axes.
        i: top.
        j: left.
        h: height.
        w: width.
        v: the new values, such that they spread over (C, h, w).
        inplace: change the tensor itself.

    Raises:
        UsageError: it is no tensor.

    Example:
        >>> erase(torch.ones(1, 1, 3), 0, 1, 1, 2, torch.zeros(1)).tolist()
        [[[1.0, 0.0, 0.0]]]
    """
    if not isinstance(img, torch.Tensor) or img.ndim < 3:
        raise UsageError(f"Erasing takes a tensor (..., C, H, W), got {type(img).__name__}. Use ToTensor first.")
    result = img if inplace else img.clone()
    result[..., i : i + h, j : j + w] = v
    return result


class RandomErasing(nn.Module):
    """Gives the tensor with a random rectangle overwritten, with probability `p`.

    Args:
        p: how often it happens.
        scale: smallest and largest part of the image's area.
        ratio: smallest and largest height divided by width; drawn on a logarithmic scale.
        value: the new value, one a channel, or "random" for normally distributed noise.
        inplace: change the tensor itself.

    Example:
        >>> RandomErasing(p=1)(torch.ones(3, 8, 8)).min().item()
        0.0
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | str | Sequence[float] = 0,
        inplace: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(value, str) and value != "random":
            raise UsageError(f"value={value!r} must be a number, one a channel, or 'random'.")
        self.p = chance.probability(p)
        self.scale = chance.limits("scale", scale)
        if self.scale[1] > 1:
            raise UsageError(f"scale={scale!r} must lie between 0 and 1.")
        self.ratio = chance.limits("ratio", ratio)
        self.value = value
        self.inplace = inplace

    @staticmethod
    def get_params(
        img: torch.Tensor, scale: Sequence[float], ratio: Sequence[float], value: list[float] | None = None
    ) -> tuple[int, int, int, int, torch.Tensor]:
        """Return top, left, height, width and values of a random rectangle; `value` None means noise.

        Ten draws are tried; if none fits, the "rectangle" is the whole image with its own values.
        """
        depth, image_h, image_w = (int(side) for side in img.shape[-3:])
        for _ in range(10):
            area = image_h * image_w * chance.uniform(scale[0], scale[1])
            aspect = chance.log_uniform(ratio[0], ratio[1])
            height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if height < image_h and width < image_w:
                noise = torch.empty((depth, height, width), dtype=torch.float32)
                values = noise.normal_() if value is None else torch.tensor(value)[:, None, None]
                top = chance.integer(0, image_h - height + 1)
                return top, chance.integer(0, image_w - width + 1), height, width, values
        return 0, 0, image_h, image_w, img

    def forward(self, img: Any) -> torch.Tensor:
        """Return the tensor, with a gap or without."""
        if not isinstance(img, torch.Tensor) or img.ndim < 3:
            raise UsageError(
                f"RandomErasing takes a tensor (..., C, H, W), got {type(img).__name__}. Use ToTensor first."
            )
        if not chance.happens(self.p):
            return img
        values = None
        if not isinstance(self.value, str):
            values = [float(v) for v in ((self.value,) if isinstance(self.value, int | float) else self.value)]
            if len(values) not in (1, img.shape[-3]):
                raise UsageError(f"value={self.value!r} must hold 1 or {img.shape[-3]} numbers for this tensor.")
        top, left, height, width, new = self.get_params(img, self.scale, self.ratio, values)
        return erase(img, top, left, height, width, new, self.inplace)

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"p={self.p}, scale={self.scale}, ratio={self.ratio}, value={self.value}, inplace={self.inplace}"
