"""Atomic writes, locks between processes, folders with links, and checks that a path is a regular file."""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path

_RETRY_S = 0.2
# What safetensors, shutil.copytree and OpenVINO's stream say when a disk is full.
_FULL = ("No space left on device", "iostream error")
_KINDS = {
    stat.S_IFIFO: "a FIFO (named pipe)", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


def require_file(path: str | os.PathLike[str]) -> int:
    """Check that a path leads to a regular file, before anything opens it, and return its size in bytes.

    Opening a FIFO blocks until there is a writer, and a device such as /dev/zero never ends. Links are followed.

    Raises:
        OSError: there is no file, or it is a FIFO, a socket or a device; `strerror` says which.
    """
    found = os.stat(path)
    kind = _KINDS.get(stat.S_IFMT(found.st_mode))
    if kind is not None:
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))
    return found.st_size


def read_bytes(path: str | os.PathLike[str], *, max_bytes: float = inf) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: it can't be read, it is not a regular file (see `require_file`), or it has more than `max_bytes`.
    """
    size = require_file(path)
    if size > max_bytes:
        raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {max_bytes:,.0f} are read", os.fspath(path))
    with open(path, "rb") as file:
        return file.read()


def is_private(path: Path) -> bool:
    """Return whether a file or folder exists, belongs to this user, and no other user can write to it."""
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def is_inside(path: str | os.PathLike[str], *folders: str | os.PathLike[str]) -> bool:
    """Return whether a path lies in one of the folders by its name alone: `..` counts, links are not followed.

    Example:
        >>> is_inside("/set/images/../a.jpg", "/set"), is_inside("/set/../a.jpg", "/set"), is_inside("/sets", "/set")
        (True, False, False)
    """
    name = os.path.abspath(path)
    return any(name == top or name.startswith(os.path.join(top, "")) for top in map(os.path.abspath, folders))


def write_whole(path: Path, data: bytes | memoryview | str) -> None:
    """Write a file atomically and make its folder; the old file stays if writing fails."""
    with whole_file(path) as draft, draft.open("wb") as file:
        file.write(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)


@contextmanager
def whole_file(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Yield a draft beside `path`, which replaces `path` when the block ends without an error.

    The draft keeps the suffix, because some writers choose a format by it.

    Args:
        path: the file to write.
        sync: wait until the disk has it, so that it also survives a power failure.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        with naming(path, draft):
            yield draft
            if sync:
                with draft.open("rb") as file:
                    os.fsync(file.fileno())
            draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


class GrowingFile:
    """A new file that grows by whole pieces: `add` writes all of a piece, or raises and leaves none of it."""

    def __init__(self, path: Path, shown: Path | None = None) -> None:
        """Create the file.

        Args:
            path: where; it must not exist.
            shown: what errors call it, if it is a draft.

        Raises:
            FileExistsError: another program has just created it.
        """
        self._shown, self._size = shown or path, 0
        self._file = path.open("xb", buffering=0)

    def add(self, text: str) -> None:
        """Append a piece; surrogates, which stand for the undecodable bytes of file names, become those bytes again."""
        rest = memoryview(text.encode("utf-8", "surrogateescape"))
        size = self._size + len(rest)
        try:
            with naming(self._shown):
                while rest:
                    rest = rest[self._file.write(rest) :]
        except BaseException:  # signals too: half a line would corrupt the file
            with suppress(OSError):
                self._file.truncate(self._size)
                self._file.seek(self._size)
            raise
        self._size = size

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@contextmanager
def naming(path: Path, draft: Path | None = None) -> Iterator[None]:
    """Put the file's path into an OSError that names no file (such as a full disk), or names the draft."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(draft), draft):
            error.filename = str(path)
            if error.filename2 is not None:
                del error.filename2  # None would be printed
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file or folder in full-disk errors; those of libraries with their own error types become OSErrors.

    Raises:
        OSError: the disk is full.
    """
    try:
        with naming(path):
            yield
    except Exception as error:
        if not isinstance(error, OSError) or error.errno is None:
            if not any(words in str(error) for words in _FULL):
                raise
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            error.filename = str(path)  # not a file inside its draft
        raise


@contextmanager
def locked(path: Path, *, wait_s: float = inf, refusal: Exception | None = None) -> Iterator[None]:
    """Hold an exclusive lock on a file, which is created; the kernel releases it when the process ends.

    Args:
        path: the lock file; its folder must exist.
        wait_s: how long to wait for another process.
        refusal: the error to raise after that time; by default the BlockingIOError.
    """
    end_s = time.monotonic() + wait_s
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= end_s:
                    raise refusal or error from error
            time.sleep(_RETRY_S)
        yield


def walk_once(folder: Path | str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk as `os.walk` does, following links, but visit each folder once."""
    seen: set[tuple[int, int]] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        here = os.stat(place)
        if (here.st_dev, here.st_ino) in seen:
            folders.clear()
        else:
            seen.add((here.st_dev, here.st_ino))
            yield place, folders, names
