"""Image files as arrays: RGB, 8-bit, HWC, turned as their EXIF orientation says."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError, UsageError
from boxwright.vision.transforms.image import pillow

_REDUCED = {2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4, 8: cv2.IMREAD_REDUCED_COLOR_8}
# Frame headers are C0 to CF, less the three markers in that range that mean something else.
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PALETTE = 3


def load_image(path: str | Path, *, min_side: int | None = None) -> NDArray[np.uint8]:
    """Return an image file as an RGB array (HWC, 8-bit), turned as its EXIF orientation says.

    torchvision's loader leaves EXIF out; in this project boxes and images are always in the frame that is displayed.

    Args:
        path: a file that OpenCV can read.
        min_side: decode a JPEG at 1/2, 1/4 or 1/8 of its size, as small as possible with both sides at least this
            long. Faster and with slightly other pixels; by default everything is decoded in full.

    Raises:
        DataError: the file is missing, empty, cut off or no image.
        UsageError: `min_side` is less than 1.
    """
    check_min_side(min_side)
    data = read_file(path)
    flag = cv2.IMREAD_COLOR
    if data.startswith(b"\xff\xd8"):
        height, width, scan = _jpeg_header(data)
        # OpenCV 4 fills the missing part of a cut-off JPEG with grey and says nothing.
        if data.rfind(b"\xff\xd9", scan) < 0:
            raise DataError(f"The JPEG file {str(path)!r} is cut off: its end marker is missing. Copy it again.")
        if min_side is not None:
            fitting = [factor for factor in _REDUCED if min(height, width) // factor >= min_side]
            flag = _REDUCED[max(fitting)] if fitting else flag
    pixels = _decode(path, data, flag)
    rgb: NDArray[Any] = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, dst=pixels)
    return rgb


def load_mask(path: str | Path) -> NDArray[Any]:
    """Return a mask file as an array of its stored numbers, HW: palette indexes or grey levels.

    Raises:
        DataError: the file is missing, empty or no mask of one number a pixel.
        MissingDependencyError: it is a PNG with a palette, and Pillow is not installed (OpenCV gives only the colours).
    """
    data = read_file(path)
    if data.startswith(b"\x89PNG") and len(data) > 25 and data[25] == _PALETTE:
        image = pillow()
        with image.open(path) as opened:
            indexes: NDArray[Any] = np.array(opened)
        return indexes
    mask = _decode(path, data, cv2.IMREAD_UNCHANGED)
    if mask.ndim == 3:
        raise DataError(f"The mask {str(path)!r} has {mask.shape[2]} channels; a mask has one number a pixel.")
    return mask


def check_min_side(min_side: int | None) -> None:
    """Return if `min_side` is a length or None.

    Raises:
        UsageError: it is less than 1.
    """
    if min_side is not None and min_side < 1:
        raise UsageError(f"min_side={min_side!r} must be at least 1.")


def read_file(path: str | Path) -> bytes:
    """Return all bytes of a file.

    Raises:
        DataError: it can't be read, or is empty.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"Can't read {str(path)!r}: {error.strerror}.") from error
    if not data:
        raise DataError(f"The file {str(path)!r} is empty. Copy it again.")
    return data


def _decode(path: str | Path, data: bytes, flag: int) -> NDArray[Any]:
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error as error:
        raise DataError(f"OpenCV can't decode {str(path)!r}: {error.err}.") from error
    if pixels is None:
        raise DataError(f"OpenCV can't decode {str(path)!r}: it is damaged or no image. Convert it to JPEG or PNG.")
    return pixels


def _jpeg_header(data: bytes) -> tuple[int, int, int]:
    """Return height, width and where the pixels begin; zeros for what is not found."""
    height = width = 0
    position = 2
    while position + 9 < len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:  # padding before a marker
            position += 1
            continue
        if marker in _FRAME_MARKERS:
            height = int.from_bytes(data[position + 5 : position + 7], "big")
            width = int.from_bytes(data[position + 7 : position + 9], "big")
        if marker == 0xDA:
            return height, width, position
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return height, width, 0
