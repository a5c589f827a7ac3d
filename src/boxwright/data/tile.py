"""`Tile`: an image at the scale at which it fits the network's input, which is what augmentation works on."""

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.data.decode import decode_image, read_image
from boxwright.data.header import parse_header
from boxwright.data.records import PathText, Records

_JPEG, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
_REDUCED = {8: cv2.IMREAD_REDUCED_COLOR_8, 4: cv2.IMREAD_REDUCED_COLOR_4, 2: cv2.IMREAD_REDUCED_COLOR_2}


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """An image at the scale at which it fits the network's input.

    Attributes:
        pixels: uint8 (h, w, 3), BGR, not padded; may be read-only.
        size_hw: height and width of the image that it was made from.
    """

    pixels: NDArray[np.uint8]
    size_hw: tuple[int, int]

    def ratio(self, size_hw: tuple[int, int]) -> float:
        """Return the factor from pixels of the original image to pixels of an input of `size_hw`."""
        return min(size_hw[0] / self.size_hw[0], size_hw[1] / self.size_hw[1])


class TileSource(Protocol):
    """Anything that gives the tiles of a set; safe to call from several threads."""

    @property
    def records(self) -> Records:
        """The set."""
        ...

    @property
    def size_hw(self) -> tuple[int, int]:
        """The input size that tiles are made for."""
        ...

    def tile(self, index: int) -> Tile:
        """Return the tile of one image.

        Raises:
            DataError: the image can't be read.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class FileTiles:
    """Tiles made from the image files, each time anew.

    Attributes:
        records: the set.
        size_hw: the input size that tiles are made for.
        exact: decode JPEGs in full even where a quarter of the pixels would do. Evaluation wants this, so that its
            pixels are those that inference sees.
    """

    records: Records
    size_hw: tuple[int, int]
    exact: bool = False

    def tile(self, index: int) -> Tile:
        """Return the tile of one image; see `TileSource`."""
        path = self.records.path(index)
        if self.exact:
            image = read_image(path)
            size_hw = (image.shape[0], image.shape[1])
        else:
            image, size_hw = decode_scaled(path, self.size_hw)
        return Tile(shrink(image, fit(size_hw, self.size_hw)), size_hw)


def fit(image_hw: tuple[int, int], size_hw: tuple[int, int]) -> tuple[int, int]:
    """Return height and width of an image when it is scaled to fit `size_hw`, as `letterbox` does.

    Example:
        >>> fit((480, 640), (416, 416))
        (312, 416)
    """
    ratio = min(size_hw[0] / image_hw[0], size_hw[1] / image_hw[1])
    return max(int(image_hw[0] * ratio), 1), max(int(image_hw[1] * ratio), 1)


def shrink(image: NDArray[np.uint8], inner_hw: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the image at another size (bilinear); the image itself when it has that size."""
    if image.shape[:2] == inner_hw:
        return image
    return np.asarray(cv2.resize(image, inner_hw[::-1], interpolation=cv2.INTER_LINEAR), np.uint8)


def decode_scaled(path: PathText, size_hw: tuple[int, int]) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Return the pixels of an image file with no less detail than `size_hw` needs, and the image's true size.

    A JPEG that is at least twice as large as needed is decoded to a half, a quarter or an eighth of its size, which
    saves most of the work behind the entropy decoder. All else is as in `read_image`, EXIF orientation too.

    Raises:
        DataError: the file can't be read; see `read_image`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "large.jpg")
        ...     _ = path.write_bytes(cv2.imencode(".jpg", np.zeros((600, 800, 3), np.uint8))[1].tobytes())
        ...     pixels, size_hw = decode_scaled(path, (192, 192))
        >>> pixels.shape, size_hw
        ((150, 200, 3), (600, 800))
    """
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError):
        image = read_image(path)  # which says in plain words why this file can't be read
        return image, (image.shape[0], image.shape[1])
    reduced = _decode_reduced(data, size_hw) if data.startswith(_JPEG) else None
    if reduced is not None:
        return reduced
    image = decode_image(data, os.fspath(path))
    return image, (image.shape[0], image.shape[1])


def _decode_reduced(data: bytes, size_hw: tuple[int, int]) -> tuple[NDArray[np.uint8], tuple[int, int]] | None:
    """Return pixels and true size, None where the full decoder must have its say."""
    head = io.BytesIO(data)
    header = parse_header(head)
    # Behind the header, because an EXIF thumbnail has an end marker of its own.
    if header is None or data.rfind(_JPEG_END, head.tell()) < 0:
        return None
    height, width = header.size_hw
    need = max(min(size_hw[0] / height, size_hw[1] / width), 0.0)
    factor = next((f for f in _REDUCED if need * f <= 1), None)
    if factor is None:
        return None
    image = cv2.imdecode(np.frombuffer(data, np.uint8), _REDUCED[factor])
    expected = (-(-height // factor), -(-width // factor), 3)
    if image is None or image.shape != expected:
        return None
    return np.asarray(image, np.uint8), (height, width)
