"""The images to predict on: files, folders, globs, videos, cameras, streams, stdin, arrays and PIL images.

Everything is an iterator: one frame is in memory at a time, however long the video.
"""

import glob
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError, UsageError
from boxwright.core.log import get_logger
from boxwright.vision.decode import IMAGE_SUFFIXES, check_pixels, decode_image, decode_scaled, list_images, read_file

_log = get_logger(__name__)
VIDEO_SUFFIXES = frozenset({".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv", ".ts", ".mjpeg"})
_DESCRIPTORS = ("/dev/fd/", "/dev/stdin")
_PROBED = 1 << 20  # bytes that FFmpeg looks at to find the format
_PLAYLIST = re.compile(rb"\A\s*(?:ffconcat|#EXTM3U)|dash:profile|<CompositionPlaylist|^c=IN ", re.MULTILINE)
_STREAMS = ("rtsp://", "rtsps://", "rtmp://", "http://", "https://", "udp://", "tcp://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One image on its way to the detector.

    Attributes:
        source: its name for the user: a path, a URL, "camera 0", "stdin", "array 3".
        image: (H, W, 3) uint8, BGR.
        index: number of the frame in a video or stream, counted from 0; None for a still image.
        fps: frames per second of the video it belongs to; 0 if the video does not say.
        full_size_hw: the size of the picture if `image` is a smaller decoding of it, else None.
    """

    source: str
    image: NDArray[np.uint8]
    index: int | None = None
    fps: float = 0.0
    full_size_hw: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An input that could not be read; the others are still predicted."""

    source: str
    error: DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedImage:
    """A file, or its bytes, that has not been decoded yet: `read` may be called in any thread."""

    source: str
    data: bytes | Path

    def read(self, fit_hw: tuple[int, int] | None = None) -> Frame | Failure:
        """Return the picture, or why it can't be read; with `fit_hw`, decoded as small as `decode_scaled` does."""
        try:
            data = self.data if isinstance(self.data, bytes) else _read(self.data)
            if fit_hw is None:
                return Frame(source=self.source, image=decode_image(data, self.source))
            image, full_hw = decode_scaled(data, self.source, fit_hw)
            return Frame(source=self.source, image=image, full_size_hw=None if image.shape[:2] == full_hw else full_hw)
        except DataError as error:
            return Failure(source=self.source, error=error)


def _read(path: str | Path) -> bytes:
    if os.path.lexists(path):
        return read_file(path)
    # It may lead into a shard. The package costs a start 8 ms.
    from boxwright.data.shards import read_encoded

    return read_encoded(path)


ImageSource: TypeAlias = str | Path | int | bytes | NDArray[Any] | Any
Item: TypeAlias = Frame | Failure | EncodedImage


def list_sources(sources: ImageSource | Sequence[ImageSource] | Iterator[ImageSource]) -> Iterator[Item]:
    """Yield the frames of one source or many, in order; files are not read yet, see `EncodedImage`.

    A string or path is an image, a folder, a glob, a video, a URL, a camera's number or "-" for one image on stdin.
    Arrays are (H, W, 3) BGR or (H, W) grey uint8, bytes are an encoded image; PIL images, frames, failures and encoded
    images are taken as they are. An iterator of sources is read one source at a time.

    Raises:
        UsageError: there is no source, or one has a type that can't hold an image.
    """
    # An open file is an iterator too, of lines; it is not a list of sources.
    is_many = isinstance(sources, (list, tuple, Iterator)) and not hasattr(sources, "read")
    many = cast("Iterable[ImageSource]", sources if is_many else [sources])
    count = -1
    for count, source in enumerate(many):
        label = _label(source, count)
        try:
            yield from _list_one(source, label)
        except DataError as error:
            yield Failure(source=label, error=error)
    if count < 0:
        raise UsageError("No source was given. Name at least one image, folder, video or stream.")


def source_folders(sources: Iterable[ImageSource]) -> set[Path]:
    """Return the folders on disk that images and videos are read from; streams and arrays have none."""
    folders: set[Path] = set()
    for source in sources:
        if not isinstance(source, (str, Path)) or str(source).lower().startswith(_STREAMS):
            continue
        path = Path(os.path.expanduser(source))
        if os.path.isdir(path):
            folders.add(path.resolve())
        elif os.path.exists(path):
            folders.add(path.parent.resolve())
        else:
            folders.update(Path(p).parent.resolve() for p in glob.iglob(str(path), recursive=True))
    return folders


def _label(source: ImageSource, position: int) -> str:
    if isinstance(source, int):
        return f"camera {source}"
    if isinstance(source, (str, Path)):
        return "stdin" if str(source) == "-" else str(source)
    return f"{'bytes' if isinstance(source, bytes) else 'array'} {position}"


def _list_one(source: ImageSource, label: str) -> Iterator[Item]:
    if isinstance(source, Item):
        yield source
    elif isinstance(source, bytes):
        yield EncodedImage(source=label, data=source)
    elif isinstance(source, int):
        yield from _read_video(source, label)
    elif not isinstance(source, (str, Path)):
        yield Frame(source=label, image=as_image(source))
    elif source == "":
        raise UsageError("A source is empty. Name an image, folder, video or stream; '.' is the current folder.")
    elif str(source) == "-":
        yield EncodedImage(source=label, data=sys.stdin.buffer.read())
    elif str(source).startswith(_DESCRIPTORS):  # `<(command)` in a shell: a FIFO that the user has named
        yield EncodedImage(source=label, data=_read_descriptor(str(source)))
    else:
        yield from _list_text(str(source), Path(os.path.expanduser(source)))


def _read_descriptor(path: str) -> bytes:
    try:
        with open(path, "rb") as opened:
            return opened.read()
    except OSError as error:
        raise DataError(f"{path!r} can't be read: {error.strerror}. Name a file, or - for stdin.") from error


def _list_text(text: str, path: Path) -> Iterator[Item]:
    if text.isdecimal() and not os.path.exists(path):
        yield from _read_video(int(text), f"camera {text}")
    elif text.lower().startswith(_STREAMS):
        yield from _read_video(text, text)
    elif os.path.isdir(path):
        files = list_images(path) + [p for p in path.iterdir() if _is_video(p) and not p.name.startswith(".")]
        if not files:
            known = " ".join(sorted(IMAGE_SUFFIXES))
            raise DataError(f"The folder {text!r} holds no image and no video. Known images: {known}.")
        yield from _list_files(sorted(files))
    elif not os.path.exists(path) and glob.has_magic(text):
        # Not only regular files: reading the others gives an error that says what they are.
        found = (Path(p) for p in glob.glob(str(path), recursive=True))
        files = sorted(p for p in found if p.exists() and not p.is_dir())
        if not files:
            raise DataError(f"No file matches {text!r}. Check the pattern.")
        yield from _list_files(files)
    else:
        yield from _list_files([path])


def _list_files(files: Sequence[Path]) -> Iterator[Item]:
    for file in files:
        if not _is_video(file) or not file.is_file():
            yield EncodedImage(source=str(file), data=file)
            continue
        try:
            _refuse_playlist(file)
            yield from _read_video(str(file), str(file))
        except DataError as error:
            yield Failure(source=str(file), error=error)


def _refuse_playlist(file: Path) -> None:
    """Refuse a list of other files that is named like a video: FFmpeg would read those.

    Raises:
        DataError: it is one, or it can't be read.
    """
    try:
        with file.open("rb") as opened:
            head = opened.read(_PROBED)
    except OSError as error:
        raise DataError(f"The video {str(file)!r} can't be opened: {error.strerror}.") from error
    if _PLAYLIST.search(head):
        raise DataError(f"{str(file)!r} is a playlist, which may name any file, not a video. Name the videos instead.")


def _read_video(source: str | int, label: str) -> Iterator[Frame]:
    what = "camera" if isinstance(source, int) else "video or stream"
    if isinstance(source, int) and not 0 <= source < 2**31:
        raise DataError(f"There is no camera {source!r}. The first one is 0.")
    if isinstance(source, str) and not is_utf8(source):
        raise DataError(f"The {what} {source!r} can't be opened: its name is not valid UTF-8. Rename it.")
    capture = cv2.VideoCapture(source)
    try:
        if not capture.isOpened():
            raise DataError(f"The {what} {source!r} can't be opened. Check that it exists and that its codec is known.")
        size_hw = (int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT)), int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)))
        check_pixels(size_hw, label, "video")
        fps = capture.get(cv2.CAP_PROP_FPS)
        promised = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        index = 0
        while True:
            ok, image = capture.read()
            if not ok:
                break
            yield Frame(source=label, image=as_image(image), index=index, fps=max(float(fps), 0.0))
            index += 1
        if index == 0:
            raise DataError(f"{label!r} was opened but gave no frame. The file may be cut off or of an unknown codec.")
        if promised > 0 and index < promised:
            _log.warning("%s ended after %d frames; its header promises %d.", label, index, promised)
    finally:
        capture.release()


def is_utf8(text: str) -> bool:
    """Return whether a file's name is valid UTF-8; OpenCV's video classes crash the process on others (seen in 5.0)."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def as_image(value: Any) -> NDArray[np.uint8]:
    """Return an array or PIL image as (H, W, 3) uint8 BGR.

    Raises:
        UsageError: it is neither, or an array of another shape or type.
        DataError: it has no pixels.
    """
    if hasattr(value, "convert") and hasattr(value, "mode"):  # a PIL image, without importing PIL
        return np.ascontiguousarray(np.asarray(value.convert("RGB"))[..., ::-1])
    if not isinstance(value, np.ndarray):
        raise UsageError(
            f"A source of type {type(value).__name__!r} can't be read. Give a path, URL, camera number, bytes, "
            "array or PIL image."
        )
    if value.dtype != np.uint8 or value.ndim not in (2, 3) or (value.ndim == 3 and value.shape[2] not in (1, 3, 4)):
        raise UsageError(
            "An array source must be uint8 of shape (H, W, 3) in BGR order or (H, W), "
            f"not {value.dtype} {value.shape!r}."
        )
    if value.size == 0:
        raise DataError(f"An array of shape {value.shape!r} has no pixels. Leave it out.")
    if value.ndim == 2 or value.shape[2] == 1:
        return cv2.cvtColor(value, cv2.COLOR_GRAY2BGR)  # type: ignore[return-value]
    return np.ascontiguousarray(value[..., :3])


def _is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_SUFFIXES
