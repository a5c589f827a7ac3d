"""Sizes of many image files, read from their headers."""

from collections.abc import Iterator, Sequence

from boxwright.core.errors import DataError
from boxwright.data.records import PathText
from boxwright.data.threads import map_threads
from boxwright.vision.decode import read_size_hw

# Waiting for the disk is most of the work, so more than there are cores.
_READERS = 8


def read_sizes_hw(paths: Sequence[PathText]) -> Iterator[tuple[int, int] | None]:
    """Yield the size of each image as displayed, in order; None for a file that can't be read."""
    yield from map_threads(lambda i: _size_or_none(paths[i]), len(paths), _READERS)


def _size_or_none(path: PathText) -> tuple[int, int] | None:
    try:
        return read_size_hw(path)
    except DataError:
        return None
