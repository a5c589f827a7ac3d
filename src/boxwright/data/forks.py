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
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boxwright.core.affinity import unbound
from boxwright.core.errors import DataError, UsageError, WorkerError
from boxwright.data import opencv_threads
from boxwright.data.cache import RamCache
from boxwright.data.crew import Crew, Facts, Work, make_rows, pin
from boxwright.data.dataset import DetectionDataset
from boxwright.data.recent import SharedRecent
from boxwright.data.shared_cache import find_recent

_MOST_ROWS = 8  # of a batch that a process is handed at once
_LENT = 3  # batches that may be with the caller before it is given copies
_GRACE_S = 150.0  # longer than a training takes to stop in good order
_NUMBER_BYTES = 2
_LOOK_S = 0.2  # how often a process looks whether the one that it works for is still there

_Bad: TypeAlias = tuple[int, str, str]


def processes_can_work() -> bool:
    """Return whether samples can be made by processes here.

    Shared caches rely on an order of writes that x86 keeps.
    """
    return sys.platform == "linux" and os.uname().machine == "x86_64"


class Processes(Crew):
    """Forks of this process, for a caller whose thread must never wait for Python's lock.

    They write pixels to memory that they share with it. They end with it, however it ends.

    Args:
        dataset: what to make samples of. Its cache should be one that processes share (`open_cache(shared=True)`).
        workers: how many processes.
        cores: processors that they may run on; empty for all.
        batch_bytes: the pixels of the largest batch.
        prefetch: how many batches may be under way.

    Raises:
        UsageError: this system can't fork, or the cache is one that processes can't share.
        WorkerError: they could not be started.
    """

    ahead = True

    def __init__(
        self, dataset: DetectionDataset, workers: int, cores: Sequence[int], *, batch_bytes: int, prefetch: int
    ) -> None:
        if not processes_can_work():
            raise UsageError("Samples can't be made by processes on this system. Use worker_kind='threads'.")
        if isinstance(dataset.tiles, RamCache):
            raise UsageError(
                "Each process would fill a RAM cache of its own. Use open_cache(…, shared=True), or "
                "worker_kind='threads'."
            )
        self._dataset, self._workers = dataset, workers
        slots = [mmap.mmap(-1, batch_bytes) for _ in range(prefetch + _LENT)]  # pages are taken when used first
        self._slots = slots
        self._free = deque(range(len(slots)))
        self._lent: set[int] = set()
        self._tokens = itertools.count()
        self._over = mmap.mmap(-1, 1)
        recent = find_recent(dataset.tiles)
        self._recent = recent if recent is not None and recent.lend() else None
        numbers, give_numbers = os.pipe()
        entered = mmap.mmap(-1, workers)
        for number in range(workers):
            os.write(give_numbers, number.to_bytes(_NUMBER_BYTES))
        self._pool = ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("fork"),
            initializer=_enter,
            initargs=(dataset, slots, tuple(cores), os.getpid(), self._over, self._recent, numbers, entered),
        )
        # A fork has OpenCV's pool but not its threads, and would wait for them for ever: it must inherit none.
        opencv_threads.hold()
        try:
            # Not on the one core that OpenMP may have bound this thread to.
            with warnings.catch_warnings(), unbound():
                # Forking beside threads may leave a lock taken for ever. The children use numpy and OpenCV alone.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pool.submit(_nothing).result()  # all are forked by the first
            while 0 in entered[:]:  # until then a signal would end them
                time.sleep(0.002)
                self._pool.submit(_nothing).result()
        except (OSError, BrokenProcessPool) as error:
            self._give_back_recent()
            raise self._death() from error
        finally:
            opencv_threads.release()
            os.close(numbers)
            os.close(give_numbers)

    def begin(self, epoch: int, indices: Sequence[int], size_hw: tuple[int, int]) -> Work:
        """See `Crew`."""
        slot, token = self._free.popleft(), next(self._tokens)
        images = _view(self._slots[slot], len(indices), size_hw)
        # Whoever holds the batch, or a part of it, holds this.
        weakref.finalize(images.base, _give_back, slot, token, self._free, self._lent)
        rows = max(1, min(_MOST_ROWS, len(indices) // self._workers))
        futures: list[Future[tuple[list[Facts | None], list[_Bad]]]] = []
        for first in range(0, len(indices), rows):
            part = list(indices[first : first + rows])
            try:
                futures.append(self._pool.submit(_make, slot, len(indices), size_hw, first, epoch, part))
            except BrokenProcessPool as error:
                # Said when this batch is asked for: those before it may be there.
                futures.append(Future())
                futures[-1].set_exception(error)
        return Work(images, [partial(self._result, future) for future in futures], list(futures), token)

    def _result(self, future: "Future[tuple[list[Facts | None], list[_Bad]]]") -> list[Facts | None]:
        try:
            rows, bad = future.result()
        except BrokenProcessPool as error:
            raise self._death() from error
        for index, text, consequence in bad:
            self._dataset.note_bad(index, DataError(text), consequence)
        return rows

    def hand_over(self, work: Work) -> NDArray[np.uint8]:
        """See `Crew`."""
        if len(self._lent) >= _LENT:  # the rest of the shared memory is for batches to come
            work.images = work.images.copy()
        else:
            self._lent.add(work.token)
        return work.images

    def drop(self, works: Sequence[Work]) -> None:
        """See `Crew`. Nothing is cancelled: when a process dies, nobody is told of a future that was."""
        for work in works:
            wait(work.futures)
            for future in work.futures:
                if future.exception() is None:
                    self._result(future)  # for what it has to say of bad images
                elif isinstance(future.exception(), BrokenProcessPool):
                    self._over[0] = 1
            work.images = work.images[:0].copy()  # a traceback may keep the work

    def close(self) -> None:
        """See `Crew`."""
        # One that was killed may have died with the lock of the queue through which the others are told to end.
        self._over[0] = 1
        self._pool.shutdown(wait=True)
        self._give_back_recent()

    def _give_back_recent(self) -> None:
        if self._recent is not None:
            self._recent.give_back()
            self._recent = None

    def _death(self) -> WorkerError:
        self._over[0] = 1
        return WorkerError(
            "A process that makes samples has died or could not be started; where memory is short, the system ends "
            "one. Use fewer workers, or worker_kind='threads'."
        )


def _view(memory: mmap.mmap, images: int, size_hw: tuple[int, int]) -> NDArray[np.uint8]:
    shape = (images, *size_hw, 3)
    return np.frombuffer(memory, np.uint8, int(np.prod(shape))).reshape(shape)


def _give_back(slot: int, token: int, free: deque[int], lent: set[int]) -> None:
    # In this order: another thread may look in between, and must not lend what is not free yet.
    free.append(slot)
    lent.discard(token)


# In the forks.


class _Place(NamedTuple):
    dataset: DetectionDataset
    slots: Sequence[mmap.mmap]
    bad: list[_Bad]


_place: _Place | None = None
_until_s = math.inf


def _enter(
    dataset: DetectionDataset,
    slots: Sequence[mmap.mmap],
    cores: tuple[int, ...],
    parent: int,
    over: mmap.mmap,
    recent: SharedRecent | None,
    numbers: int,
    entered: mmap.mmap,
) -> None:
    """Become a worker: nothing of the parent's may go on here but the data set."""
    global _place
    bad: list[_Bad] = []

    def note_bad(index: int, error: DataError, consequence: str) -> None:
        if index not in dataset.bad_images:
            dataset.bad_images[index] = str(error)
            bad.append((index, str(error), consequence))

    dataset.note_bad = note_bad  # type: ignore[method-assign]
    _place = _Place(dataset, slots, bad)
    number = int.from_bytes(os.read(numbers, _NUMBER_BYTES))
    if recent is not None:
        recent.write_as(number, len(entered))
    for name in signal.valid_signals():
        if callable(signal.getsignal(name)):
            signal.signal(name, signal.SIG_DFL)
    # A signal to all processes of a group reaches the parent too, which may want batches until it has stopped in good
    # order. It ends this process then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _outlast)
    logging.disable()  # handlers may write to the parent's display
    threading.Thread(target=_end_with, args=(parent, over), daemon=True).start()
    pin(cores)
    os.nice(5)  # the caller's thread comes first
    entered[number] = 1


def _end_with(parent: int, over: mmap.mmap) -> None:
    while os.getppid() == parent and not over[0] and time.monotonic() < _until_s:
        time.sleep(_LOOK_S)
    os._exit(1)


def _outlast(number: int, frame: object) -> None:  # noqa: ARG001
    global _until_s
    _until_s = min(_until_s, time.monotonic() + _GRACE_S)


def _nothing() -> None:
    pass


def _make(
    slot: int, batch: int, size_hw: tuple[int, int], first: int, epoch: int, indices: Sequence[int]
) -> tuple[list[Facts | None], list[_Bad]]:
    assert _place is not None
    images = _view(_place.slots[slot], batch, size_hw)[first : first + len(indices)]
    rows = make_rows(_place.dataset, images, epoch, indices)
    bad = list(_place.bad)
    _place.bad.clear()
    return rows, bad
