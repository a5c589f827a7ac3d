"""Image files to arrays, the one place where images are decoded: BGR, 8 bits, EXIF orientation applied."""

import os
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.core.environment import MAX_PIXELS, max_pixels
from boxwright.core.errors import DataError
from boxwright.core.files import read_bytes, require_file
from boxwright.vision.image_header import JPEG, SOS, has_one_scan, is_cut_off, parse_header
from boxwright.vision.size import find_size_hw, is_image

Reduction = Literal[1, 2, 4, 8]
_FLAGS: dict[Reduction, int] = {
    8: cv2.IMREAD_REDUCED_COLOR_8, 4: cv2.IMREAD_REDUCED_COLOR_4, 2: cv2.IMREAD_REDUCED_COLOR_2, 1: cv2.IMREAD_COLOR,
}  # fmt: skip

IMAGE_SUFFIXES = frozenset(
    {
        ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".webp", ".tif", ".tiff",
        ".gif", ".avif", ".jp2", ".ppm", ".pgm",
    }
)  # fmt: skip
"""Suffixes (in lower case) of the files that count as images."""

MOST_BYTES = 1 << 30
"""The size of the largest file that is read. An uncompressed image with the most pixels allowed is smaller."""

_MOST_SCANS, _SHORTEST_SCAN = 20, 12  # scans of an image of the largest size, bytes


def read_file(path: str | os.PathLike[str], kind: str = "image") -> bytes:
    """Return the bytes of a file; errors call it a `kind`.

    Raises:
        DataError: the file is missing, empty or too large, is not a regular file, or can't be read.
    """
    try:
        data = read_bytes(path, max_bytes=MOST_BYTES)
    except FileNotFoundError as error:
        raise _unreadable(path, "there is no such file", "Check the path.", kind) from error
    except IsADirectoryError as error:
        raise _unreadable(path, "it is a folder", "Name a file inside it.", kind) from error
    except PermissionError as error:
        raise _unreadable(path, "permission denied", "Make it readable for this user.", kind) from error
    except OSError as error:
        raise _unreadable(path, str(error.strerror or error), "Check the file, or leave it out.", kind) from error
    except ValueError as error:  # a name with a NUL
        raise _unreadable(path, str(error), "Check the path.", kind) from error
    if not data:
        raise _unreadable(path, "it is empty (0 bytes)", "Copy it again, or leave it out.", kind)
    return data


def read_image(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """Return the pixels of an image file, shape (H, W, 3), BGR.

    The EXIF orientation is applied, gray becomes three channels, 16 bits become 8 (the full range scaled), alpha is
    dropped. libjpeg repairs a JPEG that is damaged in the middle as far as it can.

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
    # Not cv2.imread: it can't say why it failed, and it accepts half a JPEG.
    return decode_image(read_file(path), os.fspath(path))


def read_size_hw(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return height and width of an image file as displayed, from its header where that is possible.

    Raises:
        DataError: the file is missing or not an image.
    """
    try:
        require_file(path)
        with open(path, "rb") as stream:
            header = parse_header(stream)
    except (OSError, ValueError):
        header = None
    if header is None:
        # Another format, or a broken file: decoding either works or says what is wrong.
        height, width = read_image(path).shape[:2]
        return height, width
    return header.size_hw


def decode_image(data: bytes, name: str, *, reduce: Reduction = 1) -> NDArray[np.uint8]:
    """Return the pixels of an encoded image as `read_image` does.

    Args:
        data: the file's bytes.
        name: what an error calls it.
        reduce: decode to a half, a quarter or an eighth of the size, each pixel the mean of those it replaces. A JPEG
            is then decoded in a fraction of the time.

    Raises:
        DataError: the bytes are not a complete image, or the image is too large.

    Example:
        >>> decode_image(b"GIF", "cat.gif")
        Traceback (most recent call last):
        boxwright.core.errors.DataError: Cannot read image 'cat.gif': it is not an image that OpenCV knows. Remove it...
    """
    # IMREAD_COLOR (without IGNORE_ORIENTATION) is what applies EXIF, drops alpha and brings 16 bits down to 8.
    return np.asarray(decode_with(data, name, _FLAGS[reduce]), np.uint8)


def decode_scaled(
    data: bytes, name: str, size_hw: tuple[int, int], *, cover: bool = False
) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Return the pixels of an encoded image with no less detail than `size_hw` needs, and the image's true size.

    A JPEG that is at least twice as large as needed is decoded to a half, a quarter or an eighth of its size, which
    saves most of the work behind the entropy decoder. Everything else is as in `decode_image`.

    Args:
        data: the file's bytes.
        name: what an error calls it.
        size_hw: the size that the image will be fitted into.
        cover: keep both sides at least as long as `size_hw`, for an image that is to cover it.

    Raises:
        DataError: the bytes are not a complete image; see `decode_image`.

    Example:
        >>> data = cv2.imencode(".jpg", np.zeros((600, 800, 3), np.uint8))[1].tobytes()
        >>> pixels, true_hw = decode_scaled(data, "large.jpg", (192, 192))
        >>> pixels.shape, true_hw
        ((150, 200, 3), (600, 800))
    """
    # OpenCV decodes other formats in full before it reduces them.
    header = parse_header(data) if data.startswith(JPEG) else None
    if header is not None:
        height, width = header.size_hw
        scale = (max if cover else min)(size_hw[0] / height, size_hw[1] / width)
        reduce: Reduction = next((factor for factor in _FLAGS if scale * factor <= 1), 1)
        image = decode_image(data, name, reduce=reduce)
        if image.shape[:2] == (-(-height // reduce), -(-width // reduce)):
            return image, (height, width)
    image = decode_image(data, name)
    return image, (image.shape[0], image.shape[1])


def decode_with(data: bytes, name: str, flags: int) -> NDArray[Any]:
    """Return what OpenCV makes of an encoded image with these `cv2.IMREAD_` flags.

    Raises:
        DataError: the bytes are not a complete image, or the image is too large.
    """
    if not data:
        raise _unreadable(name, "it is empty (0 bytes)", "Copy it again, or leave it out.")
    # Checked first because OpenCV fills the lost part of some half files with grey, and complains about others on
    # stderr only.
    if is_cut_off(data):
        raise _unreadable(name, f"it is cut off after {len(data)} bytes", "Copy it again, or leave it out.")
    size_hw = find_size_hw(data) or (0, 0)
    check_pixels(size_hw, name)
    if data.startswith(JPEG):
        _check_scans(data, size_hw, name)
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        too_large = "MAX_IMAGE" in str(error) or error.code == cv2.Error.StsNoMem
        reason = "it has more pixels than OpenCV can decode here" if too_large else f"OpenCV says {error.err!r}"
        raise _unreadable(name, reason, "Make it smaller, or leave it out.") from error
    # The stubs promise an array, but OpenCV returns None when it gives up.
    if image is None:
        if is_image(data):
            raise _unreadable(name, "it is damaged or cut off", "Copy it again, or leave it out.")
        raise _unreadable(name, "it is not an image that OpenCV knows", "Remove it, or convert it to JPEG or PNG.")
    return image


def check_pixels(size_hw: tuple[int, int], name: str, kind: str = "image") -> None:
    """Refuse an image or video frame that would take gigabytes of memory: a header of a few bytes can claim that.

    Raises:
        DataError: it has more pixels than `max_pixels`.
    """
    height, width = size_hw
    if height * width > (limit := max_pixels()):
        raise _unreadable(
            name,
            f"it has {width} x {height} pixels, more than the limit of {limit:,}",
            f"Make it smaller or leave it out; if you trust it, set {MAX_PIXELS} to a higher number.",
            kind,
        )


def _check_scans(data: bytes, size_hw: tuple[int, int], name: str) -> None:
    """Refuse a JPEG with very many scans: each takes only a few bytes, but long to decode."""
    most = _MOST_SCANS * max_pixels() // max(size_hw[0] * size_hw[1], 1)
    # Small files, and files with one scan, as cameras write them, are not searched.
    if len(data) // _SHORTEST_SCAN <= most or has_one_scan(data):
        return
    array = np.frombuffer(data, np.uint8)
    scans = int(np.count_nonzero((array[:-1] == 0xFF) & (array[1:] == SOS)))
    if scans > most:
        raise _unreadable(name, f"it has {scans} scans, more than {most}", "Save it again, or leave it out.")


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


def _unreadable(name: str | os.PathLike[str], reason: str, advice: str, kind: str = "image") -> DataError:
    return DataError(f"Cannot read {kind} {os.fspath(name)!r}: {reason}. {advice}")
