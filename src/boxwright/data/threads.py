"""`map_threads`: the same work on many images at once."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_PIECE = 4096

T = TypeVar("T")


def map_threads(work: Callable[[int], T], count: int, workers: int) -> Iterator[T]:
    """Give `work(0)` to `work(count - 1)` in this order, done by so many threads.

    Reading files, hashing and decoding leave Python's lock alone, so threads do them side by side.

    Example:
        >>> list(map_threads(lambda i: i * i, 4, workers=2))
        [0, 1, 4, 9]
    """
    with ThreadPoolExecutor(workers, "boxwright-data") as pool:
        # In pieces: a future for each of a million images would take more memory than what is known of them.
        for start in range(0, count, _PIECE):
            yield from pool.map(work, range(start, min(start + _PIECE, count)))
