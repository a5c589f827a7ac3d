"""Images at their own scale: mirrored, with margins, or parts of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np

from boxwright.core.errors import UsageError, check_choice
from boxwright.vision.transforms.base import Transform, draw_place, pair
from boxwright.vision.transforms.image import Fill, Pixels, apply, channels, fill_values, size_hw

_PADDING_MODES = ("constant", "edge", "reflect", "symmetric")


def hflip(img: Any) -> Any:
    """Return the image with left and right exchanged."""
    return apply(img, lambda pixels: _flip(pixels, 1))


def vflip(img: Any) -> Any:
    """Return the image with top and bottom exchanged."""
    return apply(img, lambda pixels: _flip(pixels, 0))


def _flip(pixels: Pixels, axis: int) -> Pixels:
    if pixels.dtype == np.uint8 and channels(pixels) in (1, 3, 4):
        # 30 times as fast as numpy's copy of a reversed view.
        return cv2.flip(pixels, axis).reshape(pixels.shape)
    return np.ascontiguousarray(np.flip(pixels, axis))


def pad(
    img: Any,
    padding: int | Sequence[int],
    fill: Fill = 0,
    padding_mode: str = "constant",
) -> Any:
    """Return the image with margins; negative ones cut off.

    Args:
        img: a Pillow image, an array (HWC or HW) or a tensor (CHW).
        padding: all sides; or (left and right, top and bottom); or (left, top, right, bottom).
        fill: the value of the margin, or one per channel; for mode `constant`.
        padding_mode: `constant`, `edge` (the last pixel), `reflect` (mirror without the edge) or `symmetric` (with it).

    Example:
        >>> pad(np.ones((1, 2), np.uint8), (1, 0), fill=7)
        array([[7, 1, 1, 7]], dtype=uint8)
    """
    left, top, right, bottom = _margins(padding, padding_mode)

    def change(pixels: Pixels) -> Pixels:
        image_h, image_w = pixels.shape[:2]
        inner = pixels[max(-top, 0) : image_h - max(-bottom, 0), max(-left, 0) : image_w - max(-right, 0)]
        if 0 in inner.shape:
            raise UsageError(f"padding={padding!r} leaves nothing of an image of {image_h} x {image_w}.")
        margins = ((max(top, 0), max(bottom, 0)), (max(left, 0), max(right, 0)), (0, 0))[: pixels.ndim]
        if padding_mode != "constant":
            mode: Any = padding_mode
            return np.pad(inner, margins, mode=mode)
        (above, below), (before, after) = margins[:2]
        values = np.array(fill_values(fill, pixels)).astype(pixels.dtype)
        inner_h, inner_w = inner.shape[:2]
        result = np.empty((inner_h + above + below, inner_w + before + after, *pixels.shape[2:]), pixels.dtype)
        rows, columns = slice(above, above + inner_h), slice(before, before + inner_w)
        # Only the margins are filled: writing three values per pixel over the whole image takes ten times as long.
        for margin in (np.s_[:above], np.s_[rows.stop :], np.s_[rows, :before], np.s_[rows, columns.stop :]):
            result[margin] = values if pixels.ndim == 3 else values[0]
        result[rows, columns] = inner
        return result

    return apply(img, change)


def _margins(padding: int | Sequence[int], padding_mode: str) -> tuple[int, int, int, int]:
    """Return the margins at left, top, right and bottom."""
    check_choice("padding_mode", padding_mode, _PADDING_MODES)
    values: tuple[Any, ...] = tuple(padding) if isinstance(padding, Iterable) else (padding,)
    if len(values) not in (1, 2, 4) or not all(isinstance(value, int | np.integer) for value in values):
        raise UsageError(
            f"padding={padding!r} must be 1, 2 or 4 whole numbers: all sides, (left and right, top and bottom), "
            "or (left, top, right, bottom)."
        )
    left, top, right, bottom = (values * 4)[:4] if len(values) < 4 else values
    return left, top, right, bottom


def crop_pixels(pixels: Pixels, top: int, left: int, height: int, width: int) -> Pixels:
    """Return a rectangle as a view of the pixels; parts outside the image are 0, in a new array."""
    image_h, image_w = pixels.shape[:2]
    if min(top, left) >= 0 and top + height <= image_h and left + width <= image_w:
        return pixels[top : top + height, left : left + width]
    result = np.zeros((height, width, *pixels.shape[2:]), pixels.dtype)
    y1, y2 = max(top, 0), min(top + height, image_h)
    x1, x2 = max(left, 0), min(left + width, image_w)
    if y1 < y2 and x1 < x2:
        result[y1 - top : y2 - top, x1 - left : x2 - left] = pixels[y1:y2, x1:x2]
    return result


def crop(img: Any, top: int, left: int, height: int, width: int) -> Any:
    """Return a rectangle of the image; parts outside the image are 0. From an array it may be a view.

    Example:
        >>> crop(np.arange(12).reshape(3, 4), 1, 2, 2, 2)
        array([[ 6,  7],
               [10, 11]])
    """
    if height < 1 or width < 1:
        raise UsageError(f"A crop needs a height and a width of at least 1, not {height!r} and {width!r}.")
    return apply(img, lambda pixels: crop_pixels(pixels, top, left, height, width))


def center_crop(img: Any, output_size: int | Sequence[int]) -> Any:
    """Return the middle of the image; a smaller image gets a black margin."""
    height, width = pair(output_size, "output_size")
    image_h, image_w = size_hw(img)
    # Rounding half to even inside the image and down outside is what torchvision does.
    top = round((image_h - height) / 2) if height <= image_h else -((height - image_h) // 2)
    left = round((image_w - width) / 2) if width <= image_w else -((width - image_w) // 2)
    return crop(img, top, left, height, width)


def five_crop(img: Any, size: int | Sequence[int]) -> tuple[Any, ...]:
    """Return the crops at top left, top right, bottom left, bottom right and in the middle."""
    height, width = pair(size)
    image_h, image_w = size_hw(img)
    if height > image_h or width > image_w:
        raise UsageError(f"Crops of {height} x {width} don't fit into an image of {image_h} x {image_w}.")
    places = [(top, left) for top in (0, image_h - height) for left in (0, image_w - width)]
    return (*(crop(img, *place, height, width) for place in places), center_crop(img, (height, width)))


def ten_crop(img: Any, size: int | Sequence[int], vertical_flip: bool = False) -> tuple[Any, ...]:
    """Return the five crops of the image and those of its mirror image (upside down with `vertical_flip`)."""
    return five_crop(img, size) + five_crop(vflip(img) if vertical_flip else hflip(img), size)


@dataclass(eq=False, repr=False)
class RandomHorizontalFlip(Transform):
    """Exchanges left and right with probability `p`.

    Example:
        >>> RandomHorizontalFlip(p=1)(np.array([[1, 2, 3]], np.uint8))
        array([[3, 2, 1]], dtype=uint8)
    """

    function = staticmethod(hflip)
    p: float = 0.5


@dataclass(eq=False, repr=False)
class RandomVerticalFlip(Transform):
    """Exchanges top and bottom with probability `p`.

    Example:
        >>> RandomVerticalFlip(p=1)(np.array([[1], [2]], np.uint8)).tolist()
        [[2], [1]]
    """

    function = staticmethod(vflip)
    p: float = 0.5


@dataclass(eq=False, repr=False)
class Pad(Transform):
    """Adds margins; arguments as in `pad`.

    Example:
        >>> Pad(2)(np.zeros((6, 8, 3), np.uint8)).shape
        (10, 12, 3)
    """

    function = staticmethod(pad)
    padding: int | Sequence[int]
    fill: Fill = 0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        _margins(self.padding, self.padding_mode)


@dataclass(eq=False, repr=False)
class _SizedCrop(Transform):
    size: int | Sequence[int]

    def __post_init__(self) -> None:
        self.size = pair(self.size)


@dataclass(eq=False, repr=False)
class CenterCrop(_SizedCrop):
    """Cuts out the middle of the image; a smaller image gets a black margin.

    Example:
        >>> CenterCrop(4)(np.zeros((6, 8, 3), np.uint8)).shape
        (4, 4, 3)
    """

    function = staticmethod(center_crop)


@dataclass(eq=False, repr=False)
class FiveCrop(_SizedCrop):
    """Returns a tuple of five crops: the four corners and the middle.

    Example:
        >>> len(FiveCrop(4)(np.zeros((6, 8, 3), np.uint8)))
        5
    """

    function = staticmethod(five_crop)


@dataclass(eq=False, repr=False)
class TenCrop(_SizedCrop):
    """Returns a tuple of ten crops: the five of `FiveCrop` and those of the mirror image.

    Example:
        >>> len(TenCrop(4)(np.zeros((6, 8, 3), np.uint8)))
        10
    """

    function = staticmethod(ten_crop)
    vertical_flip: bool = False


@dataclass(eq=False, repr=False)
class RandomCrop(_SizedCrop):
    """Cuts a part of fixed size out of the image at a random place.

    Args:
        size: side of the square, or (height, width).
        padding: margins added first; `fill` and `padding_mode` as in `pad`.
        pad_if_needed: add margins where the image is smaller than the crop.

    Example:
        >>> RandomCrop(4, padding=1)(np.zeros((6, 8, 3), np.uint8)).shape
        (4, 4, 3)
    """

    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = field(default=False, repr=False)
    fill: Fill = field(default=0, repr=False)
    padding_mode: str = field(default="constant", repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        _margins(0 if self.padding is None else self.padding, self.padding_mode)

    @staticmethod
    def get_params(img: Any, output_size: tuple[int, int]) -> tuple[int, int, int, int]:
        """Return top, left, height and width of a random crop."""
        image_h, image_w = size_hw(img)
        height, width = output_size
        if height > image_h or width > image_w:
            raise UsageError(
                f"A crop of {height} x {width} doesn't fit into an image of {image_h} x {image_w}. "
                "Use pad_if_needed=True, or resize first."
            )
        if (height, width) == (image_h, image_w):
            return 0, 0, height, width
        return *draw_place((image_h, image_w), height, width), height, width

    def change(self, img: Any) -> Any:
        """Return a random crop."""
        if self.padding is not None:
            img = pad(img, self.padding, self.fill, self.padding_mode)
        height, width = pair(self.size)
        image_h, image_w = size_hw(img)
        if self.pad_if_needed and image_w < width:
            img = pad(img, (width - image_w, 0), self.fill, self.padding_mode)
        if self.pad_if_needed and image_h < height:
            img = pad(img, (0, height - image_h), self.fill, self.padding_mode)
        return crop(img, *self.get_params(img, (height, width)))
