"""Image files as the data sets return them: RGB, 8-bit, HWC, EXIF orientation applied."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError, UsageError
from boxwright.vision.decode import decode_image, decode_scaled, decode_with, read_file
from boxwright.vision.transforms.image import pillow

_PALETTE = 3


def load_image(path: str | Path, *, min_side: int | None = None) -> NDArray[np.uint8]:
    """Return an image file as an RGB array (HWC, 8-bit), turned as its EXIF orientation says.

    torchvision's loader ignores EXIF; in this project boxes and images are always in the frame that is displayed.

    Args:
        path: a file that OpenCV can read.
        min_side: decode a JPEG at 1/2, 1/4 or 1/8 of its size, as small as possible with both sides at least this
            long. Faster, with slightly different pixels; by default everything is decoded in full.

    Raises:
        DataError: the file is missing, empty, cut off or not an image.
        UsageError: `min_side` is less than 1.
    """
    check_min_side(min_side)
    data = read_file(path)
    if min_side is None:
        pixels = decode_image(data, str(path))
    else:
        pixels, _ = decode_scaled(data, str(path), (min_side, min_side), cover=True)
    rgb: NDArray[Any] = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, dst=pixels)
    return rgb


def load_mask(path: str | Path) -> NDArray[Any]:
    """Return a mask file as an array of its stored numbers, HW: palette indexes or grey levels.

    Raises:
        DataError: the file is missing, empty or not a mask of one number per pixel.
        MissingDependencyError: it is a PNG with a palette, and Pillow is not installed (OpenCV gives only the colours).
    """
    data = read_file(path)
    if data.startswith(b"\x89PNG") and len(data) > 25 and data[25] == _PALETTE:
        with pillow().open(path) as opened:
            indexes: NDArray[Any] = np.array(opened)
        return indexes
    mask = decode_with(data, str(path), cv2.IMREAD_UNCHANGED)
    if mask.ndim == 3:
        raise DataError(f"The mask {str(path)!r} has {mask.shape[2]} channels; a mask has one number per pixel.")
    return mask


def check_min_side(min_side: int | None) -> None:
    """Check that `min_side` is a length or None.

    Raises:
        UsageError: it is less than 1.
    """
    if min_side is not None and min_side < 1:
        raise UsageError(f"min_side={min_side!r} must be at least 1.")
