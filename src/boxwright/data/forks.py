"""Samples made by forks of this process, for a caller whose thread must never wait for Python's lock."""

import itertools
import logging
import math
import mmap
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.queues import SimpleQueue
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from boxwright.core.affinity import unbound
from boxwright.core.errors import UsageError, WorkerError
from boxwright.data.augment import Rows
from boxwright.data.batch import PendingBatch, Position
from boxwright.data.dataset import DetectionDataset
from boxwright.data.threads import hold_opencv_threads, release_opencv_threads
from boxwright.data.tile import TileRing
from boxwright.data.workers import make_rows

_MOST_ROWS = 8  # of a batch in one task
_LENT = 3  # batches of shared memory that the caller may hold before it gets copies
_GRACE_S = 150.0  # longer than a training run takes to stop cleanly
_POLL_S = 0.2  # how often a worker checks whether its parent still runs

# Targets of some rows, and the images that could not be read, with the reason.
_Result: TypeAlias = tuple[list[Rows], dict[int, str]]


def processes_can_work() -> bool:
    """Return whether samples can be made by processes here.

    Shared caches rely on the order of writes that x86 guarantees.
    """
    return sys.platform == "linux" and os.uname().machine == "x86_64"


class ForkedWorkers:
    """Forks of this process that make samples into memory they share with it; see `SampleWorkers` for the methods.

    They end when this process ends, for whatever reason.

    Args:
        dataset: what to make samples of.
        workers: how many processes.
        batch_bytes: the pixels of the largest batch.
        prefetch: how many batches may be pending.

    Raises:
        UsageError: this system has no worker processes.
        WorkerError: they could not be started.
    """

    def __init__(self, dataset: DetectionDataset, workers: int, *, batch_bytes: int, prefetch: int) -> None:
        if not processes_can_work():
            raise UsageError("Samples can't be made by processes on this system. Use worker_kind='threads'.")
        self._dataset, self._workers = dataset, workers
        # Pages are allocated on first use.
        self._slots = [mmap.mmap(-1, batch_bytes) for _ in range(prefetch + _LENT)]
        self._free = deque(range(len(self._slots)))
        self._pending = 0  # batches; the other slots are free, or lent to the caller
        self._over = mmap.mmap(-1, 1)
        ring = TileRing(dataset.tiles.files)
        context = multiprocessing.get_context("fork")
        numbers = context.SimpleQueue()
        for number in range(workers):
            numbers.put(number)
        self._pool = ProcessPoolExecutor(
            workers,
            mp_context=context,
            initializer=_enter,
            initargs=(dataset, self._slots, os.getpid(), self._over, ring, numbers, workers),
        )
        # A fork inherits OpenCV's pool without its threads, and would wait for them for ever: there must be none.
        hold_opencv_threads()
        try:
            # Not on the one core that OpenMP may have bound this thread to.
            with warnings.catch_warnings(), unbound():
                # Forking beside threads may leave a lock taken for ever. The children use numpy and OpenCV alone.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pool.submit(os.getpid).result()  # the first task forks all workers
            while not numbers.empty():  # until then a signal would end them
                time.sleep(0.002)
                self._pool.submit(os.getpid).result()
        except (OSError, BrokenProcessPool) as error:
            raise self._ended() from error
        finally:
            release_opencv_threads()
            numbers.close()

    def begin(self, position: Position, indices: Sequence[int], size_hw: tuple[int, int]) -> PendingBatch:
        """See `SampleWorkers`."""
        slot = self._free.popleft()
        self._pending += 1
        images = _view(self._slots[slot], len(indices), size_hw)
        # Every view of the batch keeps this base alive.
        weakref.finalize(images.base, self._free.append, slot)
        rows = max(1, min(_MOST_ROWS, len(indices) // self._workers))
        futures: list[Future[_Result]] = []
        for first in range(0, len(indices), rows):
            part = indices[first : first + rows]
            try:
                futures.append(self._pool.submit(_make, slot, len(indices), size_hw, first, position.epoch, part))
            except BrokenProcessPool as error:
                # Raised when this batch is asked for: those before it may be complete.
                futures.append(Future())
                futures[-1].set_exception(error)
        return PendingBatch(position, indices, images, futures)

    def finish(self, pending: PendingBatch) -> tuple[NDArray[np.uint8], list[Rows]]:
        """See `SampleWorkers`."""
        try:
            targets = [rows for future in pending.futures for rows in self._result(future)]
        except BrokenProcessPool as error:
            raise self._ended() from error
        if len(self._slots) - len(self._free) - self._pending >= _LENT:  # the other slots are for pending batches
            pending.images = pending.images.copy()
        self._pending -= 1
        return pending.images, targets

    def _result(self, future: "Future[_Result]") -> list[Rows]:
        targets, bad = future.result()
        for index, reason in bad.items():
            self._dataset.note_bad(index, reason)
        return targets

    def drop(self, batches: Sequence[PendingBatch]) -> None:
        """See `SampleWorkers`. Nothing is cancelled: a broken pool never completes a cancelled future."""
        for pending in batches:
            wait(pending.futures)
            for future in pending.futures:
                if future.exception() is None:
                    self._result(future)  # notes its bad images
                elif isinstance(future.exception(), BrokenProcessPool):
                    self._over[0] = 1
            pending.images = pending.images[:0].copy()  # a traceback may keep the pending batch
            self._pending -= 1

    def close(self) -> None:
        """See `SampleWorkers`."""
        # A killed worker may have held the lock of the queue that would stop the others.
        self._over[0] = 1
        self._pool.shutdown(wait=True)

    def _ended(self) -> WorkerError:
        self._over[0] = 1
        return WorkerError(
            "A process that makes samples was killed or could not be started. The system kills one when memory is "
            "short. Use fewer workers, or worker_kind='threads'."
        )


def _view(memory: mmap.mmap, images: int, size_hw: tuple[int, int]) -> NDArray[np.uint8]:
    shape = (images, *size_hw, 3)
    return np.frombuffer(memory, np.uint8, math.prod(shape)).reshape(shape)


# What follows runs in the forks.

_dataset: DetectionDataset
_slots: Sequence[mmap.mmap]
_reported = 0  # of the bad images
_until_s = math.inf


def _enter(
    dataset: DetectionDataset,
    slots: Sequence[mmap.mmap],
    parent: int,
    over: mmap.mmap,
    ring: TileRing,
    numbers: "SimpleQueue[int]",
    workers: int,
) -> None:
    """Become a worker, which keeps nothing of its parent but the data set."""
    global _dataset, _slots, _reported
    _dataset, _slots, _reported = dataset, slots, len(dataset.bad_images)
    threading.Thread(target=_end_with, args=(parent, over), daemon=True).start()
    for name in signal.valid_signals():
        if callable(signal.getsignal(name)):
            signal.signal(name, signal.SIG_DFL)
    # A signal to a whole process group also reaches the parent, which may want batches until it has stopped cleanly
    # and then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _outlast)
    logging.disable()  # handlers may write to the parent's display; the parent logs the bad images
    os.nice(5)  # the caller's thread comes first
    ring.write_as(numbers.get(), workers)
    dataset.tiles.recent = ring


def _end_with(parent: int, over: mmap.mmap) -> None:
    while os.getppid() == parent and not over[0] and time.monotonic() < _until_s:
        time.sleep(_POLL_S)
    os._exit(1)


def _outlast(number: int, frame: object) -> None:  # noqa: ARG001
    global _until_s
    _until_s = min(_until_s, time.monotonic() + _GRACE_S)


def _make(slot: int, batch: int, size_hw: tuple[int, int], first: int, epoch: int, indices: Sequence[int]) -> _Result:
    global _reported
    images = _view(_slots[slot], batch, size_hw)[first : first + len(indices)]
    targets = make_rows(_dataset, images, epoch, indices)
    bad = dict(itertools.islice(_dataset.bad_images.items(), _reported, None))
    _reported += len(bad)
    return targets, bad
