"""Image files to arrays: BGR, 8 bits, EXIF orientation applied; a file that can't be read says why."""

import os
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError

Reduction = Literal[1, 2, 4, 8]
_FLAGS = {
    1: cv2.IMREAD_COLOR, 2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4, 8: cv2.IMREAD_REDUCED_COLOR_8,
}  # fmt: skip

IMAGE_SUFFIXES = frozenset(
    {
        ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".webp", ".tif", ".tiff",
        ".gif", ".avif", ".jp2", ".ppm", ".pgm",
    }
)  # fmt: skip
"""Endings (in lower case) of the files that count as images."""

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_JPEG_SOS, _JPEG_EOI = 0xDA, b"\xff\xd9"
_PNG_END = b"IEND\xaeB`\x82"
_KNOWN_STARTS = (_JPEG, _PNG, b"BM", b"GIF8", b"RIFF", b"II*\0", b"MM\0*", b"P5", b"P6", b"\0\0\0\x0cjP  ")


def read_image(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """Return the pixels of an image file, shape (H, W, 3), BGR.

    The EXIF orientation is applied, gray becomes three channels, 16 bits become 8 (the full range scaled), alpha is
    dropped. A JPEG that is damaged in the middle comes as far as libjpeg can repair it.

    Raises:
        DataError: the file is missing, empty, cut off, not an image, or too large.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "grey.png")
        ...     _ = path.write_bytes(cv2.imencode(".png", np.full((4, 6), 7, np.uint8))[1].tobytes())
        ...     read_image(path).shape
        (4, 6, 3)
    """
    # Not cv2.imread: it can't say why it failed, and it takes a half JPEG for a whole one.
    return decode_image(read_file(path), os.fspath(path))


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of an image file.

    Raises:
        DataError: the file is missing or can't be read.
    """
    try:
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        raise _unreadable(path, "there is no such file", "Check the path.") from error
    except IsADirectoryError as error:
        raise _unreadable(path, "it is a folder", "Name a file inside it.") from error
    except PermissionError as error:
        raise _unreadable(path, "permission denied", "Make it readable for this user.") from error
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error), "Check the path and the disk.") from error


def decode_image(data: bytes, name: str, *, reduce: Reduction = 1) -> NDArray[np.uint8]:
    """Return the pixels of an encoded image as `read_image` does; `name` is what an error calls it.

    Args:
        data: the file's bytes.
        name: for errors.
        reduce: give a picture of half, a quarter or an eighth of the size. A JPEG is then decoded in a fraction of the
            time; each pixel is the mean of those it stands for.

    Raises:
        DataError: the bytes are no complete image, or one too large.

    Example:
        >>> decode_image(b"GIF", "cat.gif")
        Traceback (most recent call last):
        boxwright.core.errors.DataError: Cannot read image 'cat.gif': it is no image that OpenCV knows. Remove it...
    """
    if not data:
        raise _unreadable(name, "it is empty (0 bytes)", "Copy it again, or leave it out.")
    # Asked first because OpenCV fills the lost part of some half files with grey, and complains about others on
    # stderr only.
    if _is_cut_off(data):
        raise _unreadable(name, f"it is cut off after {len(data)} bytes", "Copy it again, or leave it out.")
    try:
        # IMREAD_COLOR (and no IGNORE_ORIENTATION) is what applies EXIF, drops alpha and brings 16 bits down to 8.
        image = cv2.imdecode(np.frombuffer(data, np.uint8), _FLAGS[reduce])
    except cv2.error as error:
        reason = "it has more pixels than OpenCV allows" if "MAX_IMAGE" in str(error) else f"OpenCV says {error.err!r}"
        raise _unreadable(name, reason, "Make it smaller, or leave it out.") from error
    # The stubs promise an array; in truth there is none when OpenCV gives up.
    if image is None:
        if data.startswith(_KNOWN_STARTS):
            raise _unreadable(name, "it is damaged or cut off", "Copy it again, or leave it out.")
        raise _unreadable(name, "it is no image that OpenCV knows", "Remove it, or convert it to JPEG or PNG.")
    return np.asarray(image, dtype=np.uint8)


def list_images(folder: str | os.PathLike[str], *, recursive: bool = False) -> list[Path]:
    """Return the images in a folder, sorted; hidden files and folders don't count.

    Raises:
        DataError: the folder is missing or can't be listed.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     for name in ("b.JPG", "a.png", "notes.txt", ".hidden.jpg"):
        ...         Path(folder, name).touch()
        ...     [path.name for path in list_images(folder)]
        ['a.png', 'b.JPG']
    """

    def refuse(error: OSError) -> None:
        raise DataError(
            f"Cannot list the images in {os.fspath(folder)!r}: {error.strerror}. Check the folder."
        ) from error

    found: list[Path] = []
    for parent, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [f for f in folders if recursive and not f.startswith(".")]
        found += [
            Path(parent, f)
            for f in files
            if not f.startswith(".") and os.path.splitext(f)[1].lower() in IMAGE_SUFFIXES
        ]  # fmt: skip
    return sorted(found)


def _is_cut_off(data: bytes) -> bool:
    if data.startswith(_JPEG):
        return not _jpeg_ends(data)
    return data.startswith(_PNG) and data.rfind(_PNG_END) < 0


def _jpeg_ends(data: bytes) -> bool:
    """Tell whether the end marker follows the image data, perhaps with other bytes behind it."""
    # The headers are walked first: an EXIF thumbnail has an end marker of its own.
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        if data[at + 1] == _JPEG_SOS:
            return data.rfind(_JPEG_EOI, at) > 0
        if data[at + 1] == 0xFF:  # a fill byte
            at += 1
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    # Not laid out as the standard says: OpenCV is to judge, as long as there is an end at all.
    return at < len(data) and data.rfind(_JPEG_EOI) > 0


def _unreadable(name: str | os.PathLike[str], reason: str, advice: str) -> DataError:
    return DataError(f"Cannot read image {os.fspath(name)!r}: {reason}. {advice}")
