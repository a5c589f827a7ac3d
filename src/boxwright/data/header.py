"""What the first bytes of a JPEG or PNG say: its size and how EXIF turns it. Nothing is decoded."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from boxwright.core.errors import DataError
from boxwright.data.decode import read_image
from boxwright.data.records import PathText
from boxwright.data.threads import map_threads

_PNG = b"\x89PNG\r\n\x1a\n"
_EXIF = b"Exif\0\0"
_ORIENTATION_TAG = 0x0112
_APP1, _SOS, _EOI = 0xE1, 0xDA, 0xD9
# Every start of frame but the three markers of that range that are tables.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}

# Waiting for the disk is most of the work, so more than there are cores.
_READERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHeader:
    """The size of an image as it is stored, and the EXIF orientation (1 to 8, 1 for upright).

    Example:
        >>> ImageHeader(stored_hw=(40, 60), orientation=6).size_hw
        (60, 40)
    """

    stored_hw: tuple[int, int]
    orientation: int = 1

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width as displayed, which is how `read_image` gives the pixels."""
        height, width = self.stored_hw
        return (width, height) if self.orientation >= 5 else (height, width)


def parse_header(data: bytes | BinaryIO) -> ImageHeader | None:
    """Return size and orientation of a JPEG or PNG, None for anything else and where the header is broken.

    Example:
        >>> parse_header(b"GIF89a") is None
        True
    """
    stream = io.BytesIO(data) if isinstance(data, bytes) else data
    start = stream.read(8)
    if start == _PNG:
        return _png_header(stream)
    if start.startswith(b"\xff\xd8\xff"):
        stream.seek(2)
        return _jpeg_header(stream)
    return None


def read_size_hw(path: PathText) -> tuple[int, int]:
    """Return height and width of an image file as displayed, from its header where that is possible.

    Raises:
        DataError: the file is missing or no image.
    """
    try:
        with open(path, "rb") as stream:
            header = parse_header(stream)
    except OSError:
        header = None
    if header is None:
        # Another format, or a broken file: decoding either works or says what is wrong.
        height, width = read_image(path).shape[:2]
        return height, width
    return header.size_hw


def read_sizes_hw(paths: Sequence[PathText]) -> Iterator[tuple[int, int] | None]:
    """Give the size of each image as displayed, in order; None for a file that can't be read."""
    yield from map_threads(lambda i: _size_or_none(paths[i]), len(paths), _READERS)


def _size_or_none(path: PathText) -> tuple[int, int] | None:
    try:
        return read_size_hw(path)
    except DataError:
        return None


def _jpeg_header(stream: BinaryIO) -> ImageHeader | None:
    stored, orientation = None, 0
    while True:
        marker = stream.read(2)
        if len(marker) < 2 or marker[0] != 0xFF:
            return None
        kind = marker[1]
        while kind == 0xFF:  # fill bytes
            more = stream.read(1)
            if not more:
                return None
            kind = more[0]
        if kind in (_SOS, _EOI):
            return ImageHeader(stored_hw=stored, orientation=orientation or 1) if stored else None
        size = stream.read(2)
        length = int.from_bytes(size, "big") - 2
        if len(size) < 2 or length < 0:
            return None
        if kind in _FRAMES and length >= 5:
            frame = stream.read(5)
            height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
            if not height or not width:
                return None
            stored = height, width
            stream.seek(length - 5, io.SEEK_CUR)
        elif kind == _APP1 and not orientation:
            body = stream.read(length)
            if body.startswith(_EXIF):
                orientation = _orientation(body[len(_EXIF) :])
        else:
            stream.seek(length, io.SEEK_CUR)


def _png_header(stream: BinaryIO) -> ImageHeader | None:
    stored, orientation = None, 1
    while True:
        head = stream.read(8)
        if len(head) < 8:
            # The end chunk is missing: whoever decodes the file will say so.
            return None
        length, kind = int.from_bytes(head[:4], "big"), head[4:]
        if kind == b"IHDR":
            body = stream.read(length)
            stored = int.from_bytes(body[4:8], "big"), int.from_bytes(body[:4], "big")
            stream.seek(4, io.SEEK_CUR)
        elif kind == b"eXIf":
            orientation = _orientation(stream.read(length))
            stream.seek(4, io.SEEK_CUR)
        elif kind == b"IEND":
            return ImageHeader(stored_hw=stored, orientation=orientation) if stored and min(stored) > 0 else None
        else:
            stream.seek(length + 4, io.SEEK_CUR)


def _orientation(tiff: bytes) -> int:
    """Return the orientation that an EXIF block gives, 1 when it gives none."""
    order = {b"II": "little", b"MM": "big"}.get(tiff[:2])
    if order is None:
        return 1

    def number(at: int, size: int) -> int:
        return int.from_bytes(tiff[at : at + size], "little" if order == "little" else "big")

    table = number(4, 4)
    for entry in range(table + 2, min(table + 2 + 12 * number(table, 2), len(tiff) - 11), 12):
        if number(entry, 2) == _ORIENTATION_TAG:
            value = number(entry + 8, 2)
            return value if 1 <= value <= 8 else 1
    return 1
