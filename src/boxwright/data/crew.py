"""Who makes the samples of a loader: the loader's own thread, other threads, or other processes."""

import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import BoxwrightError, DataError, WorkerError
from boxwright.data import opencv_threads
from boxwright.data.augment import Rows
from boxwright.data.dataset import DetectionDataset

WorkerKind: TypeAlias = Literal["threads", "processes"]


class Facts(NamedTuple):
    """What there is to say of a sample beside its pixels; see `Sample`."""

    targets: Rows
    image_id: int
    size_hw: tuple[int, int]
    ratio: float


@dataclass(slots=True)
class Work:
    """The samples of a batch, being made.

    Attributes:
        images: where the pixels go, uint8 (B, H, W, 3).
        parts: each waits for some rows and returns what there is to say of them; None for one that can't be read.
        futures: what is under way.
        token: what is lent while the caller has `images`, if they lie in shared memory.
    """

    images: NDArray[np.uint8]
    parts: list[Callable[[], list[Facts | None]]]
    futures: "list[Future[Any]]" = field(default_factory=list)
    token: int = -1

    def collect(self) -> list[Facts | None]:
        """Return what there is to say of each row, when all are made."""
        return [row for part in self.parts for row in part()]


class Crew(Protocol):
    """Makes samples of one data set."""

    ahead: bool
    """Whether samples are made while the caller does something else."""

    def begin(self, epoch: int, indices: Sequence[int], size_hw: tuple[int, int]) -> Work:
        """Begin with a batch of these images."""
        ...

    def hand_over(self, work: Work) -> NDArray[np.uint8]:
        """Return the pixels of a finished batch in memory that is the caller's as long as it likes."""
        return work.images

    def drop(self, works: Sequence[Work]) -> None:
        """Leave what has been begun; what is under way is waited for, since it writes to memory that is ours."""
        futures = [future for work in works for future in work.futures]
        wait([future for future in futures if not future.cancel()])

    def close(self) -> None:
        """End the workers; nothing may be under way."""
        return


class Alone(Crew):
    """The caller makes them when it asks for them."""

    ahead = False

    def __init__(self, dataset: DetectionDataset) -> None:
        self._dataset = dataset

    def begin(self, epoch: int, indices: Sequence[int], size_hw: tuple[int, int]) -> Work:
        """See `Crew`."""
        images = np.empty((len(indices), *size_hw, 3), np.uint8)
        return Work(images, [partial(make_rows, self._dataset, images, epoch, indices)])


class Threads(Crew):
    """Threads of this process: they share its cache and write where the batch stays."""

    ahead = True

    def __init__(self, dataset: DetectionDataset, workers: int, cores: Sequence[int]) -> None:
        self._dataset = dataset
        self._pool = ThreadPoolExecutor(workers, "boxwright-data", initializer=pin, initargs=(tuple(cores),))
        opencv_threads.hold()
        # Also for a loader that nobody closes.
        self._release_opencv = weakref.finalize(self, opencv_threads.release)

    def begin(self, epoch: int, indices: Sequence[int], size_hw: tuple[int, int]) -> Work:
        """See `Crew`."""
        images = np.empty((len(indices), *size_hw, 3), np.uint8)
        futures = [
            self._pool.submit(make_rows, self._dataset, images[row : row + 1], epoch, [index])
            for row, index in enumerate(indices)
        ]
        return Work(images, [future.result for future in futures], list(futures))

    def close(self) -> None:
        """See `Crew`."""
        self._pool.shutdown(wait=True)
        self._release_opencv()


def make_rows(
    dataset: DetectionDataset, images: NDArray[np.uint8], epoch: int, indices: Sequence[int]
) -> list[Facts | None]:
    """Make samples into the rows of `images`, and return what there is to say of them; None for one left out.

    Raises:
        DataError: training has nothing that can be read.
        WorkerError: something else went wrong; the message names the image.
    """
    return [_make_row(dataset, out, epoch, index) for out, index in zip(images, indices, strict=True)]


def _make_row(dataset: DetectionDataset, out: NDArray[np.uint8], epoch: int, index: int) -> Facts | None:
    try:
        sample = dataset.sample(epoch, index, size_hw=(out.shape[0], out.shape[1]), out=out)
    except DataError as error:
        if dataset.recipe is not None:
            raise
        dataset.note_bad(index, error, "It is left out of the evaluation.")
        return None
    except BoxwrightError:
        raise
    except Exception as error:
        path = dataset.records.relative_path(index)
        raise WorkerError(
            f"The sample of {path!r} (image {index}, epoch {epoch}) failed with {type(error).__name__}: {error}"
        ) from error
    return Facts(sample.targets, sample.image_id, sample.size_hw, sample.ratio)


def pin(cores: tuple[int, ...]) -> None:
    """Keep the calling thread to these processors; none for all."""
    if cores:
        os.sched_setaffinity(0, cores)  # 0 is the calling thread, not the process
