"""What JPEG and PNG files say without being decoded: size, EXIF orientation, and whether they are whole."""

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal

JPEG = b"\xff\xd8\xff"
"""How a JPEG begins."""

SOS = 0xDA
"""The marker of a JPEG that begins a scan."""

_PNG = b"\x89PNG\r\n\x1a\n"
_EXIF, _ORIENTATION_TAG = b"Exif\0\0", 0x0112
_APP1, _EOI = 0xE1, 0xD9
_JPEG_END, _PNG_END = bytes((0xFF, _EOI)), b"IEND\xaeB`\x82"
# Limits for headers that are crafted to be parsed forever.
_MOST_PARTS, _MOST_FILL = 200_000, 4096
# Every start of frame; the three markers left out are tables.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BASELINE = (0xC0, 0xC1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHeader:
    """The size of an image as stored, and its EXIF orientation (1 to 8, 1 for upright).

    Example:
        >>> ImageHeader(stored_hw=(40, 60), orientation=6).size_hw
        (60, 40)
    """

    stored_hw: tuple[int, int]
    orientation: int = 1

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width as displayed, which is how `read_image` returns the pixels."""
        height, width = self.stored_hw
        return (width, height) if self.orientation >= 5 else (height, width)


def parse_header(data: bytes | BinaryIO) -> ImageHeader | None:
    """Return size and orientation of a JPEG or PNG without decoding it; None for other formats and broken headers.

    Example:
        >>> parse_header(b"GIF89a") is None
        True
    """
    stream = io.BytesIO(data) if isinstance(data, bytes) else data
    start = stream.read(8)
    if start == _PNG:
        return _png_header(stream)
    return _jpeg_header(stream) if start.startswith(JPEG) else None


def looks_whole(stream: BinaryIO) -> bool:
    """Return whether a JPEG or PNG ends as whole ones do; other bytes may follow that end, so False proves nothing.

    Example:
        >>> looks_whole(io.BytesIO(bytes.fromhex("ffd8ff00ffd9"))), looks_whole(io.BytesIO(bytes.fromhex("ffd8ff00")))
        (True, False)
    """
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - len(_PNG_END), 0))
    return stream.read().endswith((_JPEG_END, _PNG_END))


def is_cut_off(data: bytes) -> bool:
    """Return whether the end of a JPEG or PNG is missing; False for other formats."""
    if data.startswith(_PNG):
        return data.rfind(_PNG_END) < 0
    if not data.startswith(JPEG):
        return False
    # The end marker must follow the headers: an EXIF thumbnail has an end marker of its own.
    stream, marker = io.BytesIO(data), 0
    for marker, _ in _jpeg_segments(stream):  # noqa: B007
        pass
    if marker == SOS:
        return data.rfind(_JPEG_END, stream.tell()) < 0
    # Not laid out as the standard says: OpenCV decides, as long as there is an end marker.
    return stream.tell() >= len(data) or data.rfind(_JPEG_END) < 0


def has_one_scan(data: bytes) -> bool:
    """Return whether libjpeg decodes one scan only: the first has all components, and is not progressive."""
    stream, components = io.BytesIO(data), 0
    for marker, length in _jpeg_segments(stream):
        if marker in _FRAMES:
            body = stream.read(length)
            components = body[5] if marker in _BASELINE and length > 5 else 0
        elif marker == SOS:
            return components > 0 and data[stream.tell() + 2 : stream.tell() + 3] == bytes((components,))
    return False


def _jpeg_segments(stream: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yield marker and length of each segment up to the pixels, the stream at its start; stop where it is broken."""
    stream.seek(2)
    for _ in range(_MOST_PARTS):
        start = stream.read(2)
        for _ in range(_MOST_FILL):
            if start != b"\xff\xff":
                break
            start = b"\xff" + stream.read(1)
        if len(start) < 2 or start[0] != 0xFF or start[1] == 0xFF:
            return
        marker = start[1]
        if marker in (SOS, _EOI):
            yield marker, 0
            return
        size = stream.read(2)
        length = int.from_bytes(size, "big") - 2
        if len(size) < 2 or length < 0:
            return
        end = stream.tell() + length
        yield marker, length
        stream.seek(end)


def _jpeg_header(stream: BinaryIO) -> ImageHeader | None:
    stored, orientation = None, 0
    for marker, length in _jpeg_segments(stream):
        if marker in (SOS, _EOI):
            return ImageHeader(stored_hw=stored, orientation=orientation or 1) if stored else None
        if marker in _FRAMES and length >= 5:
            frame = stream.read(5)
            stored = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
            if not min(stored):
                return None
        elif marker == _APP1 and not orientation:
            body = stream.read(length)
            if body.startswith(_EXIF):
                orientation = _orientation(body[len(_EXIF) :])
    return None


def _png_header(stream: BinaryIO) -> ImageHeader | None:
    stored, orientation = None, 1
    for _ in range(_MOST_PARTS):
        head = stream.read(8)
        if len(head) < 8:
            break  # the end chunk is missing; decoding the file will say so
        length, kind = int.from_bytes(head[:4], "big"), head[4:]
        if kind == b"IEND":
            return ImageHeader(stored_hw=stored, orientation=orientation) if stored and min(stored) > 0 else None
        end = stream.tell() + length + 4  # the checksum follows the body
        if kind == b"IHDR":
            body = stream.read(length)
            stored = int.from_bytes(body[4:8], "big"), int.from_bytes(body[:4], "big")
        elif kind == b"eXIf":
            orientation = _orientation(stream.read(length))
        stream.seek(end)
    return None


def _orientation(tiff: bytes) -> int:
    """Return the orientation in an EXIF block, 1 if it has none."""
    order: Literal["little", "big"] = "little" if tiff[:2] == b"II" else "big"
    if tiff[:2] not in (b"II", b"MM"):
        return 1

    def number(at: int, size: int) -> int:
        return int.from_bytes(tiff[at : at + size], order)

    table = number(4, 4)
    for entry in range(table + 2, min(table + 2 + 12 * number(table, 2), len(tiff) - 11), 12):
        if number(entry, 2) == _ORIENTATION_TAG:
            value = number(entry + 8, 2)
            return value if 1 <= value <= 8 else 1
    return 1
