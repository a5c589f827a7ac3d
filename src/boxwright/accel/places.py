"""Files at a path or URL, by fsspec or by pyarrow's file systems. No torch is needed."""

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from boxwright.core.errors import BoxwrightError, CheckpointError, DataError, MissingDependencyError

PART = ".part"
"""Suffix of files that are being written."""


def is_url(place: str) -> bool:
    """Return whether a place is a URL.

    Example:
        >>> is_url("s3://bucket/run"), is_url("/data/run")
        (True, False)
    """
    return "://" in place


def locate(folder: str | Path, name: str = "") -> str:
    """Return a folder, or a file in it, as a URL or absolute path: any worker understands it.

    Example:
        >>> locate("s3://bucket/run/", "last.pt")
        's3://bucket/run/last.pt'
    """
    text = str(folder)
    if is_url(text):
        return f"{text.rstrip('/')}/{name}".rstrip("/")
    return str(Path(os.path.expanduser(text)).absolute() / name)


def previous_of(path: Path) -> Path:
    """Return where the checkpoint before this one is kept."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def open_place(place: str, wrong: type[BoxwrightError] = CheckpointError) -> tuple[Any, str]:
    """Return fsspec's file system of a path or URL, and the path on it.

    Args:
        place: the path or URL.
        wrong: the error to raise if no file system fits.

    Raises:
        MissingDependencyError: fsspec, or a package that it needs for this URL, is not installed.
    """
    try:
        import fsspec
        from fsspec.registry import known_implementations
    except ImportError as error:
        raise MissingDependencyError(f"{place!r} can't be opened: {error}. Run: pip install fsspec") from error
    try:
        system, path = fsspec.core.url_to_fs(place)
    except ImportError as error:  # s3fs, gcsfs and the like
        package = str(known_implementations[place.partition("://")[0]]["class"]).partition(".")[0]
        # Some back ends are part of fsspec and need several packages; the error itself names them.
        hint = "" if package == "fsspec" else f" Run: pip install {package}"
        raise MissingDependencyError(f"{place!r} can't be opened: {error}.{hint}") from error
    except (OSError, ValueError) as error:
        raise wrong(
            f"{place!r} can't be opened: {error}. Check how it begins, and the permissions of this user."
        ) from error
    return system, path


def open_arrow(place: str) -> tuple[Any, str]:
    """Return pyarrow's file system of a path or URL, and the path on it; fsspec serves what pyarrow does not know.

    Raises:
        DataError: no file system fits.
        MissingDependencyError: fsspec, or a package that it needs for this URL, is not installed.
    """
    import pyarrow as pa
    import pyarrow.fs as pafs

    if not is_url(place):
        return pafs.LocalFileSystem(), place
    try:
        system, path = pafs.FileSystem.from_uri(place)
        return system, path
    except pa.ArrowInvalid:
        other, path = open_place(place, DataError)
        return pafs.PyFileSystem(pafs.FSSpecHandler(other)), path
    except OSError as error:
        raise DataError(f"{place!r} can't be opened: {error}") from error


def is_folder(place: str) -> bool:
    """Return whether there is a folder."""
    system, path = open_place(place)
    return bool(system.isdir(path))


def has_file(place: str) -> bool:
    """Return whether there is a checkpoint: the file, or the one before it."""
    system, path = open_place(place)
    return bool(system.exists(path) or system.exists(_previous(path)))


@contextmanager
def to_write(place: str) -> Iterator[Path]:
    """Yield a local path to write a file to; for a URL it is uploaded afterwards, and the old file kept as previous."""
    if not is_url(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="boxwright-upload-") as folder:
        local = Path(folder) / PurePosixPath(place).name
        yield local
        put(local, place, keep=True)


def put(local: Path, place: str, *, keep: bool = False) -> None:
    """Copy a local file to a path or URL atomically.

    Args:
        local: the file.
        place: where it goes.
        keep: whether the old file stays, as the previous checkpoint.

    Raises:
        CheckpointError: it could not be written.
    """
    system, path = open_place(place)
    part = f"{path}.{uuid.uuid4().hex}{PART}"
    try:
        system.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
        system.put_file(str(local), part)
        if keep and system.exists(path):
            system.mv(path, _previous(path))
        system.mv(part, path)
    except OSError as error:
        raise CheckpointError(f"{place!r} could not be written: {error}") from error


@contextmanager
def to_read(place: str) -> Iterator[Path]:
    """Yield a local path to read a file from, the previous one beside it if there is one."""
    if not is_url(place):
        yield Path(place)
        return
    system, path = open_place(place)
    with tempfile.TemporaryDirectory(prefix="boxwright-download-") as folder:
        for one in (path, _previous(path)):
            if system.exists(one):
                system.get_file(one, str(Path(folder) / PurePosixPath(one).name))
        yield Path(folder) / PurePosixPath(path).name


def _previous(path: str) -> str:
    return str(PurePosixPath(path).with_name(previous_of(Path(path)).name))
