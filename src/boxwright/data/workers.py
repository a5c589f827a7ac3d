"""Workers that make the samples of a loader: threads of this process, or the calling thread itself."""

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import BoxwrightError, WorkerError
from boxwright.data.augment import Rows
from boxwright.data.batch import PendingBatch, Position
from boxwright.data.dataset import DetectionDataset
from boxwright.data.threads import hold_opencv_threads, release_opencv_threads

WorkerKind: TypeAlias = Literal["threads", "processes"]


class SampleWorkers:
    """Threads that make samples into memory of this process, with which they share the cache.

    Args:
        dataset: what to make samples of.
        workers: how many threads; 0 makes each batch at once, in the calling thread.
    """

    def __init__(self, dataset: DetectionDataset, workers: int) -> None:
        self._dataset = dataset
        self._pool: Executor = ThreadPoolExecutor(workers, "boxwright-data") if workers else _Inline()
        self._release_opencv: Callable[[], object] | None = None
        if workers:
            hold_opencv_threads()
            # A finalizer, because not every caller closes its loader.
            self._release_opencv = weakref.finalize(self, release_opencv_threads)

    def begin(self, position: Position, indices: Sequence[int], size_hw: tuple[int, int]) -> PendingBatch:
        """Start making a batch of these images."""
        images = np.empty((len(indices), *size_hw, 3), np.uint8)
        futures = [
            self._pool.submit(make_rows, self._dataset, images[row : row + 1], position.epoch, [index])
            for row, index in enumerate(indices)
        ]
        return PendingBatch(position, indices, images, futures)

    def finish(self, pending: PendingBatch) -> tuple[NDArray[np.uint8], list[Rows]]:
        """Wait for a batch and return its pixels, which the caller may keep, and the targets of each row.

        Raises:
            DataError: no image of the set can be read.
            WorkerError: a sample failed for another reason, or a worker ended.
        """
        return pending.images, [targets for future in pending.futures for targets in future.result()]

    def drop(self, batches: Sequence[PendingBatch]) -> None:
        """Abandon batches, and wait for the parts that are already being written."""
        wait([future for pending in batches for future in pending.futures if not future.cancel()])

    def close(self) -> None:
        """End the workers; no batch may be pending."""
        self._pool.shutdown(wait=True)
        if self._release_opencv is not None:
            self._release_opencv()


class _Inline(Executor):
    """Runs each call at once, in the calling thread."""

    def submit(self, work: Callable[..., Any], /, *values: Any, **named: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(work(*values, **named))
        return future


def make_rows(dataset: DetectionDataset, images: NDArray[np.uint8], epoch: int, indices: Sequence[int]) -> list[Rows]:
    """Make samples into the rows of `images` and return their targets.

    Raises:
        DataError: no image of the set can be read.
        WorkerError: a sample failed for another reason; the message names its image.
    """
    targets = []
    for out, index in zip(images, indices, strict=True):
        try:
            targets.append(dataset.sample(epoch, index, out=out).targets)
        except BoxwrightError:
            raise
        except Exception as error:
            path = dataset.records.relative_path(index)
            raise WorkerError(
                f"The sample of {path!r} (image {index}, epoch {epoch}) failed with {type(error).__name__}: {error}"
            ) from error
    return targets
