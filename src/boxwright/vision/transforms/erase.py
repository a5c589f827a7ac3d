"""Random gaps in images, as in "Random Erasing Data Augmentation" (Zhong and others, 2017)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from boxwright.core.errors import UsageError
from boxwright.vision.transforms.base import Transform, check_limits, draw_place, draw_sides


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

    Example:
        >>> erase(torch.ones(1, 1, 3), 0, 1, 1, 2, torch.zeros(1)).tolist()
        [[[1.0, 0.0, 0.0]]]
    """
    _check_tensor("Erasing", img)
    result = img if inplace else img.clone()
    result[..., i : i + h, j : j + w] = v
    return result


def _check_tensor(name: str, img: Any) -> None:
    if not isinstance(img, torch.Tensor) or img.ndim < 3:
        raise UsageError(f"{name} takes a tensor (..., C, H, W), got {type(img).__name__}. Use ToTensor first.")


@dataclass(eq=False, repr=False)
class RandomErasing(Transform):
    """Overwrites a random rectangle of the tensor with probability `p`.

    Args:
        p: probability of erasing.
        scale: smallest and largest part of the image's area.
        ratio: smallest and largest height divided by width; drawn on a logarithmic scale.
        value: the new value, one per channel, or "random" for normally distributed noise.
        inplace: change the tensor itself.

    Example:
        >>> RandomErasing(p=1)(torch.ones(3, 8, 8)).min().item()
        0.0
    """

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | str | Sequence[float] = 0
    inplace: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.value, str) and self.value != "random":
            raise UsageError(f"value={self.value!r} must be a number, one per channel, or 'random'.")
        self.scale = check_limits("scale", self.scale)
        if self.scale[1] > 1:
            raise UsageError(f"scale={self.scale!r} must lie between 0 and 1.")
        self.ratio = check_limits("ratio", self.ratio)

    @staticmethod
    def get_params(
        img: torch.Tensor, scale: Sequence[float], ratio: Sequence[float], value: list[float] | None = None
    ) -> tuple[int, int, int, int, torch.Tensor]:
        """Return top, left, height, width and values of a random rectangle; `value` None means noise.

        If none of ten draws fits, the "rectangle" is the whole image with its own values.
        """
        depth, image_h, image_w = (int(side) for side in img.shape[-3:])
        for height, width in draw_sides(image_h * image_w, scale, ratio):
            if height < image_h and width < image_w:
                noise = torch.empty((depth, height, width), dtype=torch.float32)
                values = noise.normal_() if value is None else torch.tensor(value)[:, None, None]
                return *draw_place((image_h, image_w), height, width), height, width, values
        return 0, 0, image_h, image_w, img

    def forward(self, img: Any) -> torch.Tensor:
        """Return the tensor, with a gap or without."""
        _check_tensor("RandomErasing", img)
        erased: torch.Tensor = super().forward(img)
        return erased

    def change(self, img: Any) -> torch.Tensor:
        """Return the tensor with a gap."""
        values = None
        if not isinstance(self.value, str):
            values = [float(v) for v in ((self.value,) if isinstance(self.value, int | float) else self.value)]
            if len(values) not in (1, img.shape[-3]):
                raise UsageError(f"value={self.value!r} must hold 1 or {img.shape[-3]} numbers for this tensor.")
        return erase(img, *self.get_params(img, self.scale, self.ratio, values), self.inplace)
