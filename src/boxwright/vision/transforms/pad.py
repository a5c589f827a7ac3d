"""Margins around images."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from torch import nn

from boxwright.core.errors import UsageError
from boxwright.vision.transforms.image import Pixels, apply, fill_values

_PADDING_MODES = ("constant", "edge", "reflect", "symmetric")


def pad(
    img: Any,
    padding: int | Sequence[int],
    fill: float | Sequence[float] = 0,
    padding_mode: str = "constant",
) -> Any:
    """Return the image with margins; negative ones cut off.

    Args:
        img: a Pillow image, an array (HWC or HW) or a tensor (CHW).
        padding: all sides; or (left and right, top and bottom); or (left, top, right, bottom).
        fill: the value of the margin, or one a channel; for mode `constant`.
        padding_mode: `constant`, `edge` (the last pixel), `reflect` (mirror without the edge) or `symmetric` (with it).

    Raises:
        UsageError: the padding, fill or mode makes no sense.

    Example:
        >>> pad(np.ones((1, 2), np.uint8), (1, 0), fill=7)
        array([[7, 1, 1, 7]], dtype=uint8)
    """
    left, top, right, bottom = check_padding(padding, padding_mode)

    def change(pixels: Pixels) -> Pixels:
        image_h, image_w = pixels.shape[:2]
        inner = pixels[max(-top, 0) : image_h - max(-bottom, 0), max(-left, 0) : image_w - max(-right, 0)]
        if 0 in inner.shape:
            raise UsageError(f"padding={padding!r} leaves nothing of an image of {image_h} x {image_w}.")
        margins = ((max(top, 0), max(bottom, 0)), (max(left, 0), max(right, 0)), (0, 0))[: pixels.ndim]
        if padding_mode != "constant":
            return np.pad(inner, margins, mode=_numpy_mode(padding_mode))
        (above, below), (before, after) = margins[:2]
        values = np.array(fill_values(fill, pixels)).astype(pixels.dtype)
        result = np.empty(
            (inner.shape[0] + above + below, inner.shape[1] + before + after, *pixels.shape[2:]), pixels.dtype
        )
        bottom_edge, right_edge = above + inner.shape[0], before + inner.shape[1]
        # Only the margins are filled: writing three values a pixel over the whole image takes ten times as long.
        for margin in (
            np.s_[:above],
            np.s_[bottom_edge:],
            np.s_[above:bottom_edge, :before],
            np.s_[above:bottom_edge, right_edge:],
        ):
            result[margin] = values if pixels.ndim == 3 else values[0]
        result[above:bottom_edge, before:right_edge] = inner
        return result

    return apply(img, change)


def _numpy_mode(name: str) -> Literal["edge", "reflect", "symmetric"]:
    return "edge" if name == "edge" else "reflect" if name == "reflect" else "symmetric"


def check_padding(padding: int | Sequence[int], padding_mode: str) -> tuple[int, int, int, int]:
    """Return the margins at left, top, right and bottom.

    Raises:
        UsageError: the padding or the mode makes no sense.
    """
    if padding_mode not in _PADDING_MODES:
        raise UsageError(f"Unknown padding_mode {padding_mode!r}. Choose from: {', '.join(_PADDING_MODES)}.")
    values: tuple[Any, ...] = tuple(padding) if isinstance(padding, Iterable) else (padding,)
    if len(values) not in (1, 2, 4) or not all(isinstance(value, int | np.integer) for value in values):
        raise UsageError(
            f"padding={padding!r} must be 1, 2 or 4 whole numbers: all sides, (left and right, top and bottom), "
            "or (left, top, right, bottom)."
        )
    left, top, right, bottom = (values * 4)[:4] if len(values) < 4 else values
    return left, top, right, bottom


class Pad(nn.Module):
    """Gives the image with margins; arguments as `pad`.

    Example:
        >>> Pad(2)(np.zeros((6, 8, 3), np.uint8)).shape
        (10, 12, 3)
    """

    def __init__(
        self,
        padding: int | Sequence[int],
        fill: float | Sequence[float] = 0,
        padding_mode: str = "constant",
    ) -> None:
        super().__init__()
        check_padding(padding, padding_mode)
        self.padding = padding
        self.fill = fill
        self.padding_mode = padding_mode

    def forward(self, img: Any) -> Any:
        """Return the padded image."""
        return pad(img, self.padding, self.fill, self.padding_mode)

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"padding={self.padding}, fill={self.fill}, padding_mode={self.padding_mode}"
