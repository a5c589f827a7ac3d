"""`map_threads`: the same work on many images at once."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def map_threads(work: Callable[[int], T], count: int, workers: int, *, chunk: int = 4096) -> Iterator[T]:
    """Yield `work(0)` to `work(count - 1)` in this order, done by `workers` threads.

    Reading files, hashing and decoding release Python's lock, so threads do them in parallel. At most `chunk` results
    wait to be taken, because one for each of a million images would take too much memory.

    Example:
        >>> list(map_threads(lambda i: i * i, 4, workers=2))
        [0, 1, 4, 9]
    """
    with ThreadPoolExecutor(workers, "boxwright-data") as pool:
        for start in range(0, count, chunk):
            yield from pool.map(work, range(start, min(start + chunk, count)))
