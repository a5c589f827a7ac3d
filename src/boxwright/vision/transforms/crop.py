"""Parts of images at their own size."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from boxwright.core.errors import UsageError
from boxwright.vision.transforms import chance
from boxwright.vision.transforms.flip import hflip, vflip
from boxwright.vision.transforms.image import Pixels, apply, pair, size_hw
from boxwright.vision.transforms.pad import check_padding, pad


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

    Raises:
        UsageError: the rectangle is empty.

    Example:
        >>> crop(np.arange(12).reshape(3, 4), 1, 2, 2, 2)
        array([[ 6,  7],
               [10, 11]])
    """
    if height < 1 or width < 1:
        raise UsageError(f"A crop needs a height and a width of at least 1, not {height!r} and {width!r}.")
    return apply(img, lambda pixels: crop_pixels(pixels, top, left, height, width))


def center_crop(img: Any, output_size: int | Sequence[int]) -> Any:
    """Return the middle of the image; a smaller image gets a black margin.

    Raises:
        UsageError: `output_size` is no size.
    """
    height, width = pair(output_size, "output_size")
    image_h, image_w = size_hw(img)
    # Rounding half to even inside the image and down outside is what torchvision does.
    top = round((image_h - height) / 2) if height <= image_h else -((height - image_h) // 2)
    left = round((image_w - width) / 2) if width <= image_w else -((width - image_w) // 2)
    return crop(img, top, left, height, width)


def five_crop(img: Any, size: int | Sequence[int]) -> tuple[Any, Any, Any, Any, Any]:
    """Return the crops at top left, top right, bottom left, bottom right and in the middle.

    Raises:
        UsageError: a crop is larger than the image.
    """
    height, width = pair(size)
    image_h, image_w = size_hw(img)
    if height > image_h or width > image_w:
        raise UsageError(f"Crops of {height} x {width} don't fit into an image of {image_h} x {image_w}.")
    corners = [(0, 0), (0, image_w - width), (image_h - height, 0), (image_h - height, image_w - width)]
    first, second, third, fourth = (crop(img, top, left, height, width) for top, left in corners)
    return first, second, third, fourth, center_crop(img, (height, width))


def ten_crop(img: Any, size: int | Sequence[int], vertical_flip: bool = False) -> tuple[Any, ...]:
    """Return the five crops of the image and those of its mirror image (upside down with `vertical_flip`).

    Raises:
        UsageError: a crop is larger than the image.
    """
    return five_crop(img, size) + five_crop(vflip(img) if vertical_flip else hflip(img), size)


class CenterCrop(nn.Module):
    """Gives the middle of the image; a smaller image gets a black margin.

    Example:
        >>> CenterCrop(4)(np.zeros((6, 8, 3), np.uint8)).shape
        (4, 4, 3)
    """

    def __init__(self, size: int | Sequence[int]) -> None:
        super().__init__()
        self.size = pair(size)

    def forward(self, img: Any) -> Any:
        """Return the middle."""
        return center_crop(img, self.size)

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"size={self.size}"


class RandomCrop(nn.Module):
    """Gives a part of the image of fixed size at a random place.

    Args:
        size: side of the square, or (height, width).
        padding: margins added first, see `pad`.
        pad_if_needed: add margins where the image is smaller than the crop.
        fill: value of the margins.
        padding_mode: kind of margins, see `pad`.

    Example:
        >>> RandomCrop(4, padding=1)(np.zeros((6, 8, 3), np.uint8)).shape
        (4, 4, 3)
    """

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: float | Sequence[float] = 0,
        padding_mode: str = "constant",
    ) -> None:
        super().__init__()
        self.size = pair(size)
        check_padding(0 if padding is None else padding, padding_mode)
        self.padding = padding
        self.pad_if_needed = pad_if_needed
        self.fill = fill
        self.padding_mode = padding_mode

    @staticmethod
    def get_params(img: Any, output_size: tuple[int, int]) -> tuple[int, int, int, int]:
        """Return top, left, height and width of a random crop.

        Raises:
            UsageError: the crop is larger than the image.
        """
        image_h, image_w = size_hw(img)
        height, width = output_size
        if height > image_h or width > image_w:
            raise UsageError(
                f"A crop of {height} x {width} doesn't fit into an image of {image_h} x {image_w}. "
                "Use pad_if_needed=True, or resize first."
            )
        if (height, width) == (image_h, image_w):
            return 0, 0, height, width
        top = chance.integer(0, image_h - height + 1)
        return top, chance.integer(0, image_w - width + 1), height, width

    def forward(self, img: Any) -> Any:
        """Return a random crop."""
        if self.padding is not None:
            img = pad(img, self.padding, self.fill, self.padding_mode)
        image_h, image_w = size_hw(img)
        if self.pad_if_needed and image_w < self.size[1]:
            img = pad(img, (self.size[1] - image_w, 0), self.fill, self.padding_mode)
        if self.pad_if_needed and image_h < self.size[0]:
            img = pad(img, (0, self.size[0] - image_h), self.fill, self.padding_mode)
        return crop(img, *self.get_params(img, self.size))

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"size={self.size}, padding={self.padding}"


class FiveCrop(nn.Module):
    """Gives a tuple of five crops: the four corners and the middle.

    Example:
        >>> len(FiveCrop(4)(np.zeros((6, 8, 3), np.uint8)))
        5
    """

    def __init__(self, size: int | Sequence[int]) -> None:
        super().__init__()
        self.size = pair(size)

    def forward(self, img: Any) -> tuple[Any, ...]:
        """Return the five crops."""
        return five_crop(img, self.size)

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"size={self.size}"


class TenCrop(nn.Module):
    """Gives a tuple of ten crops: the five of `FiveCrop` and those of the mirror image.

    Example:
        >>> len(TenCrop(4)(np.zeros((6, 8, 3), np.uint8)))
        10
    """

    def __init__(self, size: int | Sequence[int], vertical_flip: bool = False) -> None:
        super().__init__()
        self.size = pair(size)
        self.vertical_flip = vertical_flip

    def forward(self, img: Any) -> tuple[Any, ...]:
        """Return the ten crops."""
        return ten_crop(img, self.size, self.vertical_flip)

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"size={self.size}, vertical_flip={self.vertical_flip}"
