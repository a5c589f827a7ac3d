"""Where checkpoints lie: a path of this machine, or a URL that fsspec knows and that outlives the machine."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

from boxwright.accel.checkpoint import previous_of
from boxwright.core.errors import CheckpointError, MissingDependencyError


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
    system, path = _open(place)
    return bool(system.isdir(path))


def has_file(place: str) -> bool:
    """Return whether there is a checkpoint: the file, or the one before it."""
    if not is_url(place):
        return Path(place).exists() or previous_of(Path(place)).exists()
    system, path = _open(place)
    return bool(system.exists(path) or system.exists(_previous(path)))


@contextmanager
def to_write(place: str) -> Iterator[Path]:
    """Give a local path to write a file to; a URL gets it afterwards, and keeps what it had as the previous one."""
    if not is_url(place):
        yield Path(place)
        return
    system, path = _open(place)
    with tempfile.TemporaryDirectory(prefix="boxwright-upload-") as folder:
        local = Path(folder) / PurePosixPath(path).name
        yield local
        try:
            system.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
            system.put_file(str(local), f"{path}.part")
            if system.exists(path):
                system.mv(path, _previous(path))
            system.mv(f"{path}.part", path)
        except OSError as error:
            raise CheckpointError(f"The checkpoint {place!r} could not be written: {error}") from error


@contextmanager
def to_read(place: str) -> Iterator[Path]:
    """Give a local path to read a file from, the previous one beside it if there is one."""
    if not is_url(place):
        yield Path(place)
        return
    system, path = _open(place)
    with tempfile.TemporaryDirectory(prefix="boxwright-download-") as folder:
        for one in (path, _previous(path)):
            if system.exists(one):
                system.get_file(one, str(Path(folder) / PurePosixPath(one).name))
        yield Path(folder) / PurePosixPath(path).name


def _previous(path: str) -> str:
    return str(PurePosixPath(path).with_name(previous_of(Path(path)).name))


def _open(url: str) -> tuple[Any, str]:
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:  # s3fs, gcsfs and their kin
        raise MissingDependencyError(f"{url!r} can't be opened: {error}") from error
    except ValueError as error:
        raise CheckpointError(f"{url!r} can't be opened: {error}") from error
    return system, path
