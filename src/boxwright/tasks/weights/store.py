"""The weights in the cache folder, and the record of their sizes and digests. No torch is needed."""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from boxwright.core.environment import cache_folder
from boxwright.core.errors import CheckpointError
from boxwright.core.files import locked, read_bytes, require_file, write_whole
from boxwright.tasks.weights.releases import Release

RECORD = "weights.json"
"""The file in the cache folder that holds a `Record` for each file of weights there."""

_MOST_RECORD = 1 << 20
_CHUNK = 1 << 20

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the number of bytes done and of all; 0 of all while unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was seen when a file was stored.

    Attributes:
        sha256: its digest.
        size_bytes: its size.
        modified_ns: its time of modification: while size and time stay, it is not read again.
        source: the URL or path that it came from.
    """

    sha256: str
    size_bytes: int
    modified_ns: int
    source: str


def read_records() -> dict[str, Record]:
    """Return the records by file name.

    Raises:
        CheckpointError: the file that holds them can't be read.
    """
    path = cache_folder(RECORD)
    try:
        content = json.loads(read_bytes(path, max_bytes=_MOST_RECORD))
        return {str(name): Record(**values) for name, values in content["files"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"The record of the stored weights {str(path)!r} can't be read: {error!r}. Delete it and run: "
            "boxwright weights verify"
        ) from error


def write_record(name: str, record: Record) -> None:
    """Add or replace the record of a file."""
    with locked(cache_folder(f".{RECORD}.lock")):
        records = read_records() | {name: record}
        write_whole(
            cache_folder(RECORD),
            json.dumps({"files": {name: asdict(one) for name, one in records.items()}}, indent=1, sort_keys=True),
        )


def store(release: Release, draft: Path, digest: str, source: str) -> Path:
    """Move a checked file to its place, record it and return its path."""
    path = cache_folder(release.stored_name)
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(path)
    write_record(path.name, make_record(path, digest, source))
    return path


def make_record(path: Path, digest: str, source: str) -> Record:
    """Return the record of a file as it is."""
    found = path.stat()
    return Record(sha256=digest, size_bytes=found.st_size, modified_ns=found.st_mtime_ns, source=source)


def check_stored(path: Path) -> None:
    """Check a file of the cache folder against its record, if it has one; the file is read only if it was touched.

    Raises:
        CheckpointError: it is not the file that was stored.
    """
    record = read_records().get(path.name)
    if record is None:
        return
    found = path.stat()
    if (found.st_size, found.st_mtime_ns) == (record.size_bytes, record.modified_ns):
        return
    digest = hash_file(path)
    if digest != record.sha256:
        raise CheckpointError(
            f"{str(path)!r} has changed since it was stored: its SHA-256 is {digest}, not {record.sha256}. "
            f"Store it again: boxwright weights get {path.stem} --format {path.suffix[1:]}"
        )
    with suppress(OSError):  # a folder that can't be written: it is read each time
        write_record(path.name, make_record(path, digest, record.source))


def hash_file(path: Path, progress: Progress | None = None) -> str:
    """Return the SHA-256 of a regular file."""
    total, digest, done = require_file(path), hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(f"Checking {path.name}", done, total)
    return digest.hexdigest()
