"""What the data room keeps in the cache folder: `list_caches` and `clear_caches`."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from boxwright.core.environment import cache_folder

KINDS = {
    "labels": "packed labels",
    "reports": "reports on checked sets",
    "tiles": "resized images",
    "shards": "shards that were fetched or unpacked",
}
"""The folders of the caches and what they hold."""

_LOCK = ".lock"  # another process may hold one


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """What one cache takes.

    Attributes:
        name: its folder, one of `KINDS`.
        folder: where it is.
        files: how many files it has.
        bytes: how much they take.
    """

    name: str
    folder: str
    files: int
    bytes: int


def list_caches() -> list[CacheUse]:
    """Return what each cache takes now."""
    found = []
    for name in KINDS:
        sizes = [size for file in _files(name) if (size := _size(file)) is not None]
        found.append(CacheUse(name=name, folder=str(cache_folder(name)), files=len(sizes), bytes=sum(sizes)))
    return found


def clear_caches() -> list[CacheUse]:
    """Remove all of them and return what they took. A process that uses one keeps its pages until it ends."""
    before = list_caches()
    for name in KINDS:
        for file in _files(name):
            with suppress(OSError):
                file.unlink()
    return before


def _files(name: str) -> list[Path]:
    try:
        return [file for file in cache_folder(name).iterdir() if file.suffix != _LOCK and file.is_file()]
    except OSError:
        return []


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except OSError:  # another process has just removed it
        return None
