"""Files that appear whole or not at all, locks between processes, and folders with links."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path

_RETRY_S = 0.2


def write_whole(path: Path, data: bytes | memoryview | str) -> None:
    """Write a file atomically and make its folder; the old file stays if writing fails."""
    with whole_file(path) as draft, draft.open("wb") as file:
        file.write(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a draft beside `path`, which replaces `path` when the block ends without an error.

    The draft keeps the suffix, because some writers choose a format by it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


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
    """Yield what `os.walk` does, also through links, but each folder once."""
    seen: set[tuple[int, int]] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        here = os.stat(place)
        if (here.st_dev, here.st_ino) in seen:
            folders.clear()
        else:
            seen.add((here.st_dev, here.st_ino))
            yield place, folders, names
