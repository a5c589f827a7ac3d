"""Rotating, shearing and tilting images.

Places are measured as Pillow does: a pixel's middle is at +0.5, the image's middle at half its width and height.
On COCO photos rotated by up to 30 degrees, nearest gives Pillow's pixels but for 1 in 100; bilinear differs by 0.6
levels on average (Pillow cuts fractions off) with a 99th percentile of 2; at the rim OpenCV blends the image with the
fill over one pixel, where Pillow cuts hard. Bicubic has OpenCV's sharper kernel: 0.9 on average, 99th percentile 7.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import UsageError
from boxwright.vision.transforms.base import Range, Transform, check_limits, check_range, integer, spread, uniform
from boxwright.vision.transforms.image import (
    Fill,
    InterpolationMode,
    Mode,
    Pixels,
    apply,
    fill_values,
    for_opencv,
    like,
    size_hw,
)

_FLAGS = {
    InterpolationMode.NEAREST: cv2.INTER_NEAREST,
    InterpolationMode.BILINEAR: cv2.INTER_LINEAR,
    InterpolationMode.BICUBIC: cv2.INTER_CUBIC,
}


def rotate(
    img: Any,
    angle: float,
    interpolation: Mode = InterpolationMode.NEAREST,
    expand: bool = False,
    center: Sequence[float] | None = None,
    fill: Fill = 0,
) -> Any:
    """Return the image rotated counter-clockwise.

    Args:
        img: a Pillow image, an array (HWC or HW) or a tensor (CHW).
        angle: degrees.
        interpolation: `nearest`, `bilinear` or `bicubic`.
        expand: make the image large enough for the whole rotated one.
        center: (x, y) of the fixed point; the middle of the image by default.
        fill: value of the corners that come into view, or one per channel.

    Example:
        >>> rotate(np.array([[1, 2], [3, 4]], np.uint8), 90)
        array([[2, 4],
               [1, 3]], dtype=uint8)
    """
    mode = warp_mode(interpolation)
    height, width = size_hw(img)
    quarters = angle % 360 / 90
    fits = quarters in (0, 2) or (quarters in (1, 3) and (expand or height == width))
    if fits and center is None:
        # Quarter turns need no sampling, and odd sides no half pixels.
        return apply(img, lambda pixels: np.ascontiguousarray(np.rot90(pixels, int(quarters))))
    centre = _centre(center, height, width)
    radians = math.radians(angle)
    cos, sin = math.cos(radians), math.sin(radians)
    forward = _about(centre, np.array([[cos, sin], [-sin, cos]]))
    if expand:
        corners = np.array([[0, 0, 1], [width, 0, 1], [width, height, 1], [0, height, 1]]).T
        # Rounded, so that a whole number with a rounding error doesn't grow the image by a pixel.
        turned = (np.linalg.inv(forward)[:2] @ corners).round(9)
        new_w, new_h = (int(math.ceil(side.max()) - math.floor(side.min())) for side in turned)
        forward = _shift((new_w - width) / 2, (new_h - height) / 2) @ forward
        width, height = new_w, new_h
    return apply(img, lambda pixels: _warp(pixels, forward, (height, width), mode, fill))


def affine(
    img: Any,
    angle: float,
    translate: Sequence[float],
    scale: float,
    shear: float | Sequence[float],
    interpolation: Mode = InterpolationMode.NEAREST,
    fill: Fill = 0,
    center: Sequence[float] | None = None,
) -> Any:
    """Return the image sheared, rotated clockwise, scaled and shifted, in this order, at the same size.

    Args:
        img: a Pillow image, an array (HWC or HW) or a tensor (CHW).
        angle: degrees, clockwise (as torchvision has it; `rotate` goes the other way).
        translate: pixels to the right and down.
        scale: factor above 0.
        shear: degrees along x, or along x and y.
        interpolation: `nearest`, `bilinear` or `bicubic`.
        fill: value of the parts that come into view, or one per channel.
        center: (x, y) of the fixed point; the middle of the image by default.

    Example:
        >>> affine(np.array([[1, 2, 3]], np.uint8), 0, (1, 0), 1.0, 0)
        array([[0, 1, 2]], dtype=uint8)
    """
    mode = warp_mode(interpolation)
    shears = (shear, 0.0) if isinstance(shear, int | float) else tuple(shear) if len(shear) == 2 else (*shear, 0.0)
    if len(translate) != 2 or len(shears) != 2 or scale <= 0:
        raise UsageError(
            f"affine needs two translations, a scale above 0 and one or two shears; "
            f"got {translate!r}, {scale!r} and {shear!r}."
        )
    height, width = size_hw(img)
    rot, shear_x, shear_y = (math.radians(value) for value in (angle, *shears))
    # The rotation comes after a shear along y and one along x, multiplied out.
    along, across = math.cos(rot - shear_y) / math.cos(shear_y), math.sin(rot - shear_y) / math.cos(shear_y)
    tilt = math.tan(shear_x)
    matrix = scale * np.array([[along, -along * tilt - math.sin(rot)], [across, -across * tilt + math.cos(rot)]])
    forward = _shift(translate[0], translate[1]) @ _about(_centre(center, height, width), matrix)
    return apply(img, lambda pixels: _warp(pixels, forward, (height, width), mode, fill))


def perspective(
    img: Any,
    startpoints: Sequence[Sequence[float]],
    endpoints: Sequence[Sequence[float]],
    interpolation: Mode = InterpolationMode.BILINEAR,
    fill: Fill = 0,
) -> Any:
    """Return the image with four points (x, y) moved to four others, as if seen from the side."""
    mode = warp_mode(interpolation)
    start, end = (np.asarray(points, np.float32) for points in (startpoints, endpoints))
    if start.shape != (4, 2) or end.shape != (4, 2):
        raise UsageError(f"perspective needs four (x, y) points on both sides; got {startpoints!r} and {endpoints!r}.")
    forward = np.asarray(cv2.getPerspectiveTransform(start, end), np.float64)
    size = size_hw(img)
    return apply(img, lambda pixels: _warp(pixels, forward, size, mode, fill))


def _warp(
    pixels: Pixels, forward: NDArray[np.floating[Any]], to_hw: tuple[int, int], mode: InterpolationMode, fill: Fill
) -> Pixels:
    # Pillow puts a pixel's middle at +0.5, OpenCV at 0.
    matrix = _shift(-0.5, -0.5) @ forward @ _shift(0.5, 0.5)
    border = fill_values(fill, for_opencv(pixels))
    size, flag = (to_hw[1], to_hw[0]), _FLAGS[mode]
    if np.array_equal(matrix[2], (0, 0, 1)):
        return like(pixels, cv2.warpAffine(pixels, matrix[:2], size, flags=flag, borderValue=border))
    return like(pixels, cv2.warpPerspective(pixels, matrix, size, flags=flag, borderValue=border))


def warp_mode(interpolation: Mode) -> InterpolationMode:
    """Return the mode if images can be warped with it; else raise an error."""
    mode = InterpolationMode.parse(interpolation)
    if mode not in _FLAGS:
        raise UsageError(f"interpolation={mode.value!r} can't warp images. Choose from: nearest, bilinear, bicubic.")
    return mode


def _centre(center: Sequence[float] | None, height: int, width: int) -> tuple[float, float]:
    return (width * 0.5, height * 0.5) if center is None else (float(center[0]), float(center[1]))


def _shift(x: float, y: float) -> NDArray[np.float64]:
    return np.array([[1.0, 0.0, x], [0.0, 1.0, y], [0.0, 0.0, 1.0]])


def _about(centre: tuple[float, float], matrix: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    full = np.eye(3)
    full[:2, :2] = matrix
    return _shift(*centre) @ full @ _shift(-centre[0], -centre[1])


@dataclass(eq=False, repr=False)
class RandomRotation(Transform):
    """Rotates the image by a random angle.

    Args:
        degrees: (smallest, largest), or one number for (-degrees, degrees); the other arguments as in `rotate`.

    Example:
        >>> RandomRotation(10)(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    degrees: Range
    interpolation: Mode = InterpolationMode.NEAREST
    expand: bool = False
    center: Sequence[float] | None = field(default=None, repr=False)
    fill: Fill = 0

    def __post_init__(self) -> None:
        self.degrees = spread("degrees", self.degrees)
        self.interpolation = warp_mode(self.interpolation)
        _check_point(self.center)

    @staticmethod
    def get_params(degrees: Sequence[float]) -> float:
        """Return a random angle."""
        return uniform(degrees[0], degrees[1])

    def change(self, img: Any) -> Any:
        """Return the rotated image."""
        angle = self.get_params(self.degrees)
        return rotate(img, angle, self.interpolation, self.expand, self.center, self.fill)


@dataclass(eq=False, repr=False)
class RandomAffine(Transform):
    """Rotates, shifts, scales and shears the image at random.

    Args:
        degrees: (smallest, largest) angle, or one number for (-degrees, degrees).
        translate: largest shift as part of the width and of the height.
        scale: (smallest, largest) factor.
        shear: (smallest, largest) degrees along x, four numbers for x and y, or one number for (-shear, shear);
            the other arguments as in `affine`.

    Example:
        >>> RandomAffine(10, translate=(0.1, 0.1))(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    degrees: Range
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: Range | None = None
    interpolation: Mode = InterpolationMode.NEAREST
    fill: Fill = 0
    center: Sequence[float] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.degrees = spread("degrees", self.degrees)
        if self.translate is not None and (len(self.translate) != 2 or not all(0 <= v <= 1 for v in self.translate)):
            raise UsageError(
                f"translate={self.translate!r} must be two numbers from 0 to 1: parts of width and height."
            )
        self.scale = None if self.scale is None else check_limits("scale", self.scale)
        self.shear = None if self.shear is None else spread("shear", self.shear, lengths=(2, 4))
        self.interpolation = warp_mode(self.interpolation)
        _check_point(self.center)

    @staticmethod
    def get_params(
        degrees: Sequence[float],
        translate: Sequence[float] | None,
        scale_ranges: Sequence[float] | None,
        shears: Sequence[float] | None,
        img_size: Sequence[int],
    ) -> tuple[float, tuple[int, int], float, tuple[float, float]]:
        """Return a random angle, translation in whole pixels, scale and shear; `img_size` is (width, height)."""
        angle = uniform(degrees[0], degrees[1])
        shift = (0, 0)
        if translate is not None:
            reach_x, reach_y = translate[0] * img_size[0], translate[1] * img_size[1]
            shift = (round(uniform(-reach_x, reach_x)), round(uniform(-reach_y, reach_y)))
        scale = 1.0 if scale_ranges is None else uniform(scale_ranges[0], scale_ranges[1])
        shear_x = shear_y = 0.0
        if shears is not None:
            shear_x = uniform(shears[0], shears[1])
            shear_y = uniform(shears[2], shears[3]) if len(shears) == 4 else 0.0
        return angle, shift, scale, (shear_x, shear_y)

    def change(self, img: Any) -> Any:
        """Return the changed image."""
        height, width = size_hw(img)
        drawn = self.get_params(self.degrees, self.translate, self.scale, self.shear, (width, height))
        return affine(img, *drawn, interpolation=self.interpolation, fill=self.fill, center=self.center)


@dataclass(eq=False, repr=False)
class RandomPerspective(Transform):
    """Shows the image as if seen from the side, with probability `p`.

    Args:
        distortion_scale: from 0 (nothing) to 1: how far a corner may move, as part of half the image.
        p: probability of the change; the other arguments as in `perspective`.

    Example:
        >>> RandomPerspective(p=1)(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: Mode = field(default=InterpolationMode.BILINEAR, repr=False)
    fill: Fill = field(default=0, repr=False)

    def __post_init__(self) -> None:
        check_range("distortion_scale", 0, self.distortion_scale, 1)
        super().__post_init__()
        self.interpolation = warp_mode(self.interpolation)

    @staticmethod
    def get_params(width: int, height: int, distortion_scale: float) -> tuple[list[list[int]], list[list[int]]]:
        """Return the four corners and the random points that they move to, clockwise from the top left."""
        reach_x, reach_y = int(distortion_scale * (width // 2)), int(distortion_scale * (height // 2))
        near_x, far_x = (0, reach_x + 1), (width - reach_x - 1, width)
        near_y, far_y = (0, reach_y + 1), (height - reach_y - 1, height)
        ranges = [(near_x, near_y), (far_x, near_y), (far_x, far_y), (near_x, far_y)]
        end = [[integer(*in_x), integer(*in_y)] for in_x, in_y in ranges]
        return [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]], end

    def change(self, img: Any) -> Any:
        """Return the image seen from the side."""
        height, width = size_hw(img)
        start, end = self.get_params(width, height, self.distortion_scale)
        return perspective(img, start, end, self.interpolation, self.fill)


def _check_point(center: Sequence[float] | None) -> None:
    if center is not None and len(center) != 2:
        raise UsageError(f"center={center!r} must be (x, y).")
