"""Files that appear whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


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
