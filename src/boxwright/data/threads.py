"""Threads that work on many images at once, and OpenCV's own threads, which are switched off beside them."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import cv2

from boxwright.core.log import get_logger

_log = get_logger(__name__)
_LOG_EVERY_S = 5.0

READERS = 8
"""Threads that read many small files; most of the time they wait for the disk."""

T = TypeVar("T")

# OpenCV has one setting for the whole process, so the holders are counted.
_lock = threading.Lock()
_holders = 0
_before = 0


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


def with_progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Yield the items; every five seconds, log how many are done and how long the rest will take.

    Example:
        >>> list(with_progress(iter("ab"), 2, "label files read"))
        ['a', 'b']
    """
    start = logged = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if done == 1:
            logged = now  # the first items are started together: one says nothing about the speed
        if now - logged > _LOG_EVERY_S:
            logged = now
            left_s = (now - start) / done * (total - done)
            _log.info("%s of %s %s, %.0f s left.", f"{done:,}", f"{total:,}", what, left_s)


def hold_opencv_threads() -> None:
    """Keep every OpenCV call of this process to the calling thread, until `release_opencv_threads` is called as often.

    OpenCV's threads would run, and spin, on the cores that compute; worker threads keep theirs busy without them.
    """
    global _holders, _before
    with _lock:
        if not _holders:
            _before = cv2.getNumThreads()
            cv2.setNumThreads(1)
        _holders += 1


def release_opencv_threads() -> None:
    """Undo one `hold_opencv_threads`; the last call restores OpenCV's number of threads."""
    global _holders
    with _lock:
        _holders -= 1
        if not _holders:
            cv2.setNumThreads(_before)
