"""Labels that were read before: packed records in the cache folder, found by the content of what they were read from.

Reading 400 MB only to learn that they have not changed would take a second or two, so a small file remembers the
content's hash for a label file of this size, times, inode and path. The time of the last change of the inode (ctime)
is among them, which no copying tool can set. A file that was changed in the last two seconds is not trusted by its
times: it may be written again within the clock's resolution. A copied set is found by its content.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from boxwright.core.environment import cache_folder
from boxwright.core.files import walk_once, write_whole
from boxwright.core.log import get_logger
from boxwright.data.packed import map_records, store_records
from boxwright.data.records import Records

_log = get_logger(__name__)

FRESH_NS = 2_000_000_000
"""How long the times of a file that has just changed are not trusted."""

_SMALLEST = 1 << 20  # bytes of labels; fewer are parsed at once
_FEWEST = 1000  # files of labels; fewer are parsed at once
_MOST_BYTES = 4 << 30  # of packed labels; those used longest ago are removed
_SUFFIX, _STAMP = ".records", ".stamp"


def cached_file(file: Path, make: Callable[[], Records | None], *, fresh_ns: int = FRESH_NS) -> Records | None:
    """Return the labels of one large file: those that an earlier reading packed, else what `make` returns, packed.

    Args:
        file: what they are read from.
        make: reads them; it returns None for labels that are not to be kept.
        fresh_ns: how long ago a file must have changed for its times to be trusted.
    """
    stamp = _stamp(file)
    if stamp is None or stamp[0] < _SMALLEST:
        return make()
    folder = cache_folder("labels")
    note = folder / f"{_digest([os.path.abspath(file)])}{_STAMP}"
    fresh = max(stamp[1:3]) > time.time_ns() - fresh_ns
    known = None if fresh else _read_note(note, stamp)
    if known is not None and (found := _use(folder / f"{known}{_SUFFIX}")) is not None:
        return found
    with ThreadPoolExecutor(1) as pool:
        hashed = pool.submit(_hash_file, file)
        # Only a packed file of the same length can be the same; otherwise hashing and parsing go side by side.
        if next(folder.glob(f"{stamp[0]}-*{_SUFFIX}"), None) is not None:
            found = _use(folder / f"{stamp[0]}-{hashed.result()}{_SUFFIX}")
        else:
            found = None
        made = make() if found is None else found
        name = f"{stamp[0]}-{hashed.result()}"
    if made is None or stamp != _stamp(file):  # it was written to meanwhile
        return made
    if found is None:
        made = _keep(made, folder / f"{name}{_SUFFIX}")
    if not fresh:
        with suppress(OSError):
            write_whole(note, json.dumps([stamp, name]))
    return made


def cached_files(
    sources: Iterable[Path], question: object, make: Callable[[], Records | None], *, fresh_ns: int = FRESH_NS
) -> Records | None:
    """Return the labels of many files: those that an earlier reading packed, else what `make` returns, packed.

    Args:
        sources: all that the labels depend on: files, and folders, of which everything below counts.
        question: what else they depend on, such as the class names that were asked for; its `repr` counts.
        make: reads them; it returns None for labels that are not to be kept.
        fresh_ns: how long ago each file must have changed for its times to be trusted.
    """
    state = _state(sources, fresh_ns)
    if state is None:
        return make()
    file = cache_folder("labels") / f"{_digest([state, repr(question)])}{_SUFFIX}"
    found = _use(file)
    if found is not None:
        return found
    made = make()
    return made if made is None else _keep(made, file)


def cached_clean(sources: Iterable[Path], question: object, make: Callable[[], Records]) -> Records:
    """Return the labels of many files as `cached_files` does, and keep them only if nothing is missing from them.

    Reading them says what is missing; it must say so again next time.
    """
    read: list[Records] = []

    def keep_clean() -> Records | None:
        read.append(make())
        return read[0] if not read[0].missing and (read[0].sizes_hw > 0).all() else None

    found = cached_files(sources, question, keep_clean)
    return read[0] if found is None else found


def _use(file: Path) -> Records | None:
    found = map_records(file)
    if found is not None:
        with suppress(OSError):
            os.utime(file)  # says when it was last used
        _log.debug("Labels: packed before, in %r.", str(file))
    return found


def _keep(records: Records, file: Path) -> Records:
    """Write records to the cache and return them mapped; as they are if that is impossible."""
    try:
        store_records(records, file)
    except OSError as error:
        _log.warning("The labels are not kept in %r (%s): the next run reads them again.", str(file), error.strerror)
        return records
    _evict(file.parent, keep=file)
    return map_records(file) or records


def _evict(folder: Path, keep: Path) -> None:
    """Remove the packed labels that were used longest ago, until the rest is small enough."""
    room = _MOST_BYTES
    with suppress(OSError):
        ages = sorted(((file.stat().st_mtime_ns, file) for file in _files(folder)), reverse=True)
        for _, file in ages:
            room -= file.stat().st_size
            if room < 0 and file != keep:
                file.unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    return [file for suffix in (_SUFFIX, _STAMP) for file in folder.glob(f"*{suffix}")]


def _stamp(file: Path) -> list[int] | None:
    """Return size, times and inode of a file."""
    try:
        return [*_numbers(os.stat(file))]
    except (OSError, ValueError):
        return None


def _walk(folder: Path) -> Iterator[tuple[bytes, tuple[int, int, int, int]]]:
    """Yield the path and the numbers of every file below a folder."""
    for place, _, _ in walk_once(folder):
        with os.scandir(place) as entries:
            for entry in entries:
                if not entry.is_dir():
                    yield os.fsencode(entry.path), _entry(entry)


def _entry(entry: os.DirEntry[str]) -> tuple[int, int, int, int]:
    try:
        return _numbers(entry.stat())
    except FileNotFoundError:  # a link that leads nowhere
        return _numbers(entry.stat(follow_symlinks=False))


def _numbers(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _read_note(note: Path, stamp: list[int]) -> str | None:
    try:
        then, name = json.loads(note.read_bytes())
    except (OSError, ValueError, TypeError):
        return None
    return name if then == stamp and isinstance(name, str) and os.sep not in name else None


def _hash_file(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:32]


def _state(sources: Iterable[Path], fresh_ns: int) -> str | None:
    """Return a hash of names, sizes, times and inodes of all files; None if one is too fresh, or there are few."""
    total = newest = 0
    digest = hashlib.sha256()
    for source in sorted(set(sources)):
        digest.update(b"\0\0" + os.fsencode(source))
        try:
            rows = sorted(_walk(source)) if source.is_dir() else [(b"", _numbers(source.stat()))]
        except OSError:
            return None
        # The times of a folder don't say that a file in it was written to, so each file counts.
        newest = max([newest, *(time_ns for _, found in rows for time_ns in found[1:3])])
        total += len(rows)
        for name, found in rows:
            digest.update(b"%s\0%d %d %d %d\0" % (name, *found))
    if total < _FEWEST or newest > time.time_ns() - fresh_ns:
        return None
    return digest.hexdigest()[:40]


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:40]
