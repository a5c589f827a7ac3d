"""Turning, shearing and tilting images at random."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from boxwright.core.errors import UsageError
from boxwright.vision.transforms import chance
from boxwright.vision.transforms.image import InterpolationMode, size_hw
from boxwright.vision.transforms.warp import Fill, Mode, affine, perspective, rotate, warp_mode


class RandomRotation(nn.Module):
    """Gives the image turned by a random angle.

    Args:
        degrees: (smallest, largest), or one number for (-degrees, degrees).
        interpolation: see `rotate`, like the rest.
        expand: make the image as large as the turned one needs.
        center: (x, y) of the fixed point.
        fill: value of the corners that come into view.

    Example:
        >>> import numpy as np
        >>> RandomRotation(10)(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: Mode = InterpolationMode.NEAREST,
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: Fill = 0,
    ) -> None:
        super().__init__()
        self.degrees = _around_zero("degrees", degrees)
        self.interpolation = warp_mode(interpolation)
        self.expand = expand
        self.center = _point(center)
        self.fill = fill

    @staticmethod
    def get_params(degrees: Sequence[float]) -> float:
        """Return a random angle."""
        return chance.uniform(degrees[0], degrees[1])

    def forward(self, img: Any) -> Any:
        """Return the turned image."""
        angle = self.get_params(self.degrees)
        return rotate(img, angle, self.interpolation, self.expand, self.center, self.fill)

    def extra_repr(self) -> str:
        """Return the arguments."""
        return (
            f"degrees={self.degrees}, interpolation={self.interpolation.value}, expand={self.expand}, fill={self.fill}"
        )


class RandomAffine(nn.Module):
    """Gives the image turned, shifted, scaled and sheared at random.

    Args:
        degrees: (smallest, largest) angle, or one number for (-degrees, degrees).
        translate: largest shift as part of the width and of the height.
        scale: (smallest, largest) factor.
        shear: (smallest, largest) degrees along x, four numbers for x and y, or one number for (-shear, shear).
        interpolation: see `affine`, like the rest.
        fill: value of the parts that come into view.
        center: (x, y) of the fixed point.

    Example:
        >>> import numpy as np
        >>> RandomAffine(10, translate=(0.1, 0.1))(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: Mode = InterpolationMode.NEAREST,
        fill: Fill = 0,
        center: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.degrees = _around_zero("degrees", degrees)
        if translate is not None and (len(translate) != 2 or not all(0 <= part <= 1 for part in translate)):
            raise UsageError(f"translate={translate!r} must be two numbers from 0 to 1: parts of width and height.")
        self.translate = translate
        self.scale = None if scale is None else chance.limits("scale", scale)
        self.shear = None if shear is None else _around_zero("shear", shear, (2, 4))
        self.interpolation = warp_mode(interpolation)
        self.fill = fill
        self.center = _point(center)

    @staticmethod
    def get_params(
        degrees: Sequence[float],
        translate: Sequence[float] | None,
        scale_ranges: Sequence[float] | None,
        shears: Sequence[float] | None,
        img_size: Sequence[int],
    ) -> tuple[float, tuple[int, int], float, tuple[float, float]]:
        """Return a random angle, translation in whole pixels, scale and shear; `img_size` is (width, height)."""
        angle = chance.uniform(degrees[0], degrees[1])
        shift = (0, 0)
        if translate is not None:
            reach_x, reach_y = translate[0] * img_size[0], translate[1] * img_size[1]
            shift = (round(chance.uniform(-reach_x, reach_x)), round(chance.uniform(-reach_y, reach_y)))
        scale = 1.0 if scale_ranges is None else chance.uniform(scale_ranges[0], scale_ranges[1])
        shear_x = shear_y = 0.0
        if shears is not None:
            shear_x = chance.uniform(shears[0], shears[1])
            shear_y = chance.uniform(shears[2], shears[3]) if len(shears) == 4 else 0.0
        return angle, shift, scale, (shear_x, shear_y)

    def forward(self, img: Any) -> Any:
        """Return the changed image."""
        height, width = size_hw(img)
        drawn = self.get_params(self.degrees, self.translate, self.scale, self.shear, (width, height))
        return affine(img, *drawn, interpolation=self.interpolation, fill=self.fill, center=self.center)

    def extra_repr(self) -> str:
        """Return the arguments."""
        return (
            f"degrees={self.degrees}, translate={self.translate}, scale={self.scale}, shear={self.shear}, "
            f"interpolation={self.interpolation.value}, fill={self.fill}"
        )


class RandomPerspective(nn.Module):
    """Gives the image as if seen from the side, with probability `p`.

    Args:
        distortion_scale: from 0 (nothing) to 1: how far a corner may move, as part of half the image.
        p: how often it happens.
        interpolation: see `perspective`.
        fill: value of the parts that come into view.

    Example:
        >>> import numpy as np
        >>> RandomPerspective(p=1)(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    def __init__(
        self,
        distortion_scale: float = 0.5,
        p: float = 0.5,
        interpolation: Mode = InterpolationMode.BILINEAR,
        fill: Fill = 0,
    ) -> None:
        super().__init__()
        if not 0 <= distortion_scale <= 1:
            raise UsageError(f"distortion_scale={distortion_scale!r} must be between 0 and 1.")
        self.distortion_scale = distortion_scale
        self.p = chance.probability(p)
        self.interpolation = warp_mode(interpolation)
        self.fill = fill

    @staticmethod
    def get_params(width: int, height: int, distortion_scale: float) -> tuple[list[list[int]], list[list[int]]]:
        """Return the four corners and the random points that they move to, clockwise from the top left."""
        reach_x, reach_y = int(distortion_scale * (width // 2)), int(distortion_scale * (height // 2))
        near_x, far_x = (0, reach_x + 1), (width - reach_x - 1, width)
        near_y, far_y = (0, reach_y + 1), (height - reach_y - 1, height)
        ranges = [(near_x, near_y), (far_x, near_y), (far_x, far_y), (near_x, far_y)]
        end = [[chance.integer(*in_x), chance.integer(*in_y)] for in_x, in_y in ranges]
        return [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]], end

    def forward(self, img: Any) -> Any:
        """Return the image, tilted or not."""
        if not chance.happens(self.p):
            return img
        height, width = size_hw(img)
        start, end = self.get_params(width, height, self.distortion_scale)
        return perspective(img, start, end, self.interpolation, self.fill)

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"distortion_scale={self.distortion_scale}, p={self.p}"


def _around_zero(name: str, value: float | Sequence[float], lengths: tuple[int, ...] = (2,)) -> tuple[float, ...]:
    if isinstance(value, int | float):
        if value < 0:
            raise UsageError(f"{name}={value!r} must not be negative when it is one number.")
        return (-float(value), float(value))
    if len(value) not in lengths or any(value[i] > value[i + 1] for i in range(0, len(value), 2)):
        wanted = " or ".join(str(length) for length in lengths)
        raise UsageError(f"{name}={value!r} must be one number, or {wanted} in pairs (smallest, largest).")
    return tuple(float(number) for number in value)


def _point(center: Sequence[float] | None) -> Sequence[float] | None:
    if center is not None and len(center) != 2:
        raise UsageError(f"center={center!r} must be (x, y).")
    return center
