"""Where files lie that outlive a machine: a path that others see too, or a URL that fsspec knows."""

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec
from fsspec.registry import known_implementations

from boxwright.accel.previous import previous_of
from boxwright.core.errors import BoxwrightError, CheckpointError, MissingDependencyError

PART = ".part"
"""Ending of files that are being written."""


def is_url(place: str) -> bool:
    """Return whether a place is a URL.

    Example:
        >>> is_url("s3://bucket/run"), is_url("/data/run")
        (True, False)
    """
    return "://" in place


def locate(folder: str | Path, name: str = "") -> str:
    """Return a folder, or a file in it, as a worker anywhere understands it.

    Example:
        >>> locate("s3://bucket/run/", "last.pt")
        's3://bucket/run/last.pt'
    """
    text = str(folder)
    if is_url(text):
        return f"{text.rstrip('/')}/{name}".rstrip("/")
    return str(Path(text).absolute() / name)


def is_folder(place: str) -> bool:
    """Return whether there is a folder."""
    if not is_url(place):
        return Path(place).is_dir()
    system, path = open_place(place)
    return bool(system.isdir(path))


def has_file(place: str) -> bool:
    """Return whether there is a checkpoint: the file, or the one before it."""
    if not is_url(place):
        return Path(place).exists() or previous_of(Path(place)).exists()
    system, path = open_place(place)
    return bool(system.exists(path) or system.exists(_previous(path)))


@contextmanager
def to_write(place: str) -> Iterator[Path]:
    """Give a local path to write a file to; a URL gets it afterwards, and keeps what it had as the previous one."""
    if not is_url(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="boxwright-upload-") as folder:
        local = Path(folder) / PurePosixPath(place).name
        yield local
        put(local, place, keep=True)


def put(local: Path, place: str, *, keep: bool = False) -> None:
    """Copy a file of this machine to a path or URL, where it is whole or not there.

    Args:
        local: the file.
        place: where it goes.
        keep: whether what is there now stays, as the previous checkpoint.

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
    """Give a local path to read a file from, the previous one beside it if there is one."""
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


def open_place(place: str, wrong: type[BoxwrightError] = CheckpointError) -> tuple[Any, str]:
    """Return fsspec's file system of a path or URL, and the path on it.

    Args:
        place: the path or URL.
        wrong: what is raised where there is no such file system.

    Raises:
        MissingDependencyError: a package of fsspec's is not installed.
    """
    try:
        system, path = fsspec.core.url_to_fs(place)
    except ImportError as error:  # s3fs, gcsfs and their kin
        package = str(known_implementations[place.partition("://")[0]]["class"]).partition(".")[0]
        # Some back ends are fsspec's own and need several packages: its words name them.
        hint = "" if package == "fsspec" else f" Run: pip install {package}"
        raise MissingDependencyError(f"{place!r} can't be opened: {error}.{hint}") from error
    except (OSError, ValueError) as error:
        raise wrong(f"{place!r} can't be opened: {error}. Check how it begins, and the rights of this user.") from error
    return system, path
