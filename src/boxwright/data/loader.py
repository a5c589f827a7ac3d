"""`Loader`: batches of a data set, made ahead by workers, for one of several training processes."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger
from boxwright.data.batch import Batch, Position, pad_targets
from boxwright.data.crew import Alone, Crew, Threads, Work, WorkerKind, pin
from boxwright.data.dataset import DetectionDataset
from boxwright.data.forks import Processes
from boxwright.data.randomness import Purpose, stream

_log = get_logger(__name__)

# A new image size every so many batches, as in YOLOX.
_SIZE_BATCHES = 10


class Loader:
    """Batches of a data set for one of several processes; iterate over it for the batches of an epoch.

    The loader remembers where it is: a second `for` goes on with the next epoch, and one that was left early with
    `break` goes on where it was. `position` is all that a checkpoint needs; a loader that starts there gives the very
    batches that would have come. Neither the number of workers nor how far they are ahead changes a sample.

    Training (the data set has a recipe): batch k of an epoch is the k-th run of `batch_size * world_size` images in the
    epoch's shuffled order, and each process takes its `batch_size` of them. All processes have the same number of
    batches. `drop_last` leaves out the images that don't fill one, unless there would be no batch at all; without it
    the last run is dealt out as evenly as possible, and only a process that would get nothing is given one image again.

    Evaluation: the images are dealt out in turn, none twice and none left out, so that a process may have a batch more
    than another. An image that can't be read is left out of its batch, logged, and named in `dataset.bad_images`.

    Workers are threads, which share the cache: nearly all of the work is in OpenCV, which lets other threads run.
    While a loader with worker threads is open, OpenCV's own threads are off in this process. Still a fifth of their
    time is Python's, and where the caller's thread has a device to keep busy, it waits for them. Worker processes don't
    have it wait; they cost memory of their own and need a cache that they can share (`open_cache`'s `shared`).

    Args:
        dataset: what to load.
        batch_size: images in a batch of this process.
        rank: which of the processes this is.
        world_size: how many there are.
        workers: threads or processes that make samples ahead; 0 makes them when they are asked for.
        prefetch: how many batches may be under way or waiting.
        drop_last: see above; None for what fits: on in training, off in evaluation.
        infinite: go on with the next epoch without end, instead of stopping after each.
        start: where to begin.
        max_boxes: pad targets to so many boxes, always; where there are more, the largest are kept and `dropped_boxes`
            counts the others. None pads to what the batch needs, in steps of 8, and drops nothing.
        cores: processors that workers may run on, to keep them off those that compute; empty for all.
        worker_kind: "threads" or "processes", see above.

    Raises:
        UsageError: the numbers don't fit together.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from boxwright.data.recipe import recipe_for
        >>> from boxwright.data.synthetic import generate_scenes
        >>> with TemporaryDirectory() as folder:
        ...     records = generate_scenes(folder, images=5, seed=0, size_hw=(64, 64))
        ...     dataset = DetectionDataset(records, (64, 64), recipe=recipe_for("yolox_nano").no_aug())
        ...     with Loader(dataset, batch_size=2, workers=1) as loader:
        ...         shapes = [batch.images.shape[0] for batch in loader]
        ...         shapes, loader.position
        ([2, 2], Position(epoch=1, batch=0))
    """

    def __init__(
        self,
        dataset: DetectionDataset,
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 2,
        prefetch: int = 2,
        drop_last: bool | None = None,
        infinite: bool = False,
        start: tuple[int, int] = Position(),
        max_boxes: int | None = None,
        cores: Sequence[int] = (),
        worker_kind: WorkerKind = "threads",
    ) -> None:
        training = dataset.recipe is not None
        _require(batch_size >= 1, f"batch_size={batch_size!r}: a batch has at least one image.")
        _require(0 <= rank < world_size, f"rank={rank!r} does not fit world_size={world_size!r}: it counts from 0.")
        _require(workers >= 0, f"workers={workers!r} is negative. Use 0 to make samples when they are asked for.")
        _require(prefetch >= 1, f"prefetch={prefetch!r}: at least one batch must be under way.")
        _require(training or not drop_last, "drop_last=True would lose images of an evaluation. Leave it out.")
        _require(training or not infinite, "infinite=True: an evaluation ends with its last image. Leave it out.")
        _require(max_boxes is None or max_boxes >= 1, f"max_boxes={max_boxes!r} leaves no box. Use 1 or more, or None.")
        _require(
            worker_kind in get_args(WorkerKind),
            f"Unknown worker_kind {worker_kind!r}. Choose from: {', '.join(get_args(WorkerKind))}.",
        )
        _require(
            worker_kind == "threads" or workers > 0, f"worker_kind={worker_kind!r}, and workers=0. Use one or more."
        )
        _require(not cores or workers > 0, f"cores={tuple(cores)!r} pins workers, and workers=0. Use one or more.")
        _check_cores(cores)
        self.dataset = dataset
        self.batch_size = batch_size
        self.dropped_boxes = 0
        self._rank, self._world_size = rank, world_size
        self._training = training
        self._drop_last = training if drop_last is None else drop_last
        self._infinite = infinite
        self._max_boxes = max_boxes
        self._prefetch = prefetch
        self._under_way: deque[_Pending] = deque()
        self._closed = False
        self._position = Position()
        self.seek(start)
        self._crew = self._gather(workers, worker_kind, cores)

    def _gather(self, workers: int, kind: WorkerKind, cores: Sequence[int]) -> Crew:
        dataset = self.dataset
        if not workers:
            return Alone(dataset)
        if kind == "threads":
            return Threads(dataset, workers, cores)
        largest_hw = dataset.size_hw if dataset.recipe is None else dataset.recipe.largest_hw(dataset.size_hw)
        size = self.batch_size * largest_hw[0] * largest_hw[1] * 3
        return Processes(dataset, workers, cores, batch_bytes=size, prefetch=self._prefetch)

    def __len__(self) -> int:
        """How many batches an epoch has for this process."""
        images, run = len(self.dataset), self.batch_size * self._world_size
        if self._training:
            return max(images // run, 1) if self._drop_last else -(-images // run)
        own = len(range(self._rank, images, self._world_size))
        return -(-own // self.batch_size)

    @property
    def position(self) -> Position:
        """The batch that comes next."""
        return self._position

    def seek(self, position: tuple[int, int]) -> None:
        """Go on at another batch.

        Raises:
            UsageError: an epoch has no such batch.
        """
        epoch, batch = position
        if epoch < 0 or not 0 <= batch < max(len(self), 1):
            raise UsageError(f"There is no batch {batch!r} in epoch {epoch!r}: an epoch has {len(self)}.")
        self._abandon()
        self._position = Position(epoch, batch)

    def __iter__(self) -> Iterator[Batch]:
        epoch = self._position.epoch
        if not len(self):
            self._position = Position(epoch + 1)
        while self._infinite or self._position.epoch == epoch:
            batch = self._next_batch()
            if len(batch):  # an evaluation may have found none that can be read
                yield batch

    def close(self) -> None:
        """Stop the workers and wait for them; what they have made ahead is lost, `position` is not."""
        if self._closed:
            return
        self._closed = True
        self._abandon()
        self._crew.close()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next_batch(self) -> Batch:
        if self._closed:
            raise UsageError("This loader is closed. Make another one, with start=loader.position to go on.")
        self._run_ahead()
        pending = self._under_way.popleft()
        try:
            found = pending.work.collect()
        except BaseException:
            # All of it, so that whoever goes on gets this batch again and not the one behind it.
            self._under_way.appendleft(pending)
            self._abandon()
            raise
        images = self._crew.hand_over(pending.work)
        self._position = self._following(pending.position)
        if self._crew.ahead and (self._infinite or self._position.epoch == pending.position.epoch):
            self._run_ahead()  # while the caller is busy with this batch
        rows = [row for row, sample in enumerate(found) if sample is not None]
        samples = [sample for sample in found if sample is not None]
        targets, dropped = pad_targets([sample.targets for sample in samples], self._max_boxes)
        if dropped and not self.dropped_boxes:
            _log.warning(
                "An image has more than max_boxes=%d boxes: the largest are kept. See Loader.dropped_boxes.",
                self._max_boxes,
            )
        self.dropped_boxes += dropped
        return Batch(
            images=images if len(rows) == len(found) else images[rows],
            targets=targets,
            image_ids=np.array([sample.image_id for sample in samples], np.int64),
            sizes_hw=np.array([sample.size_hw for sample in samples], np.int32).reshape(-1, 2),
            ratios=np.array([sample.ratio for sample in samples], np.float32),
            position=pending.position,
        )

    def _run_ahead(self) -> None:
        """Have as many batches under way as are allowed."""
        while len(self._under_way) < (self._prefetch if self._crew.ahead else 1):
            position = self._following(self._under_way[-1].position) if self._under_way else self._position
            if position.epoch != self._position.epoch and not self._infinite:
                return
            self._under_way.append(self._begin(position))

    def _begin(self, position: Position) -> "_Pending":
        indices = self._indices(position).tolist()
        return _Pending(position, self._crew.begin(position.epoch, indices, self._size_hw(position)))

    def _indices(self, position: Position) -> NDArray[np.int64]:
        """Return the images of this process' part of a batch."""
        order, batch = self.dataset.order(position.epoch), position.batch
        if not self._training:
            return order[self._rank :: self._world_size][batch * self.batch_size : (batch + 1) * self.batch_size]
        run = order[batch * self.batch_size * self._world_size :][: self.batch_size * self._world_size]
        part = np.array_split(run, self._world_size)[self._rank]
        # Every process must take part in every step.
        return part if len(part) else order[self._rank % len(order) :][:1]

    def _size_hw(self, position: Position) -> tuple[int, int]:
        """Return the image size of a batch: the same in every process."""
        dataset = self.dataset
        if dataset.recipe is None:
            return dataset.size_hw
        rng = stream(dataset.seed, Purpose.SIZE, position.epoch, position.batch // _SIZE_BATCHES)
        return dataset.recipe.batch_size_hw(dataset.size_hw, float(rng.random()))

    def _following(self, position: Position) -> Position:
        if position.batch + 1 < len(self):
            return Position(position.epoch, position.batch + 1)
        return Position(position.epoch + 1)

    def _abandon(self) -> None:
        """Drop what is under way."""
        if self._under_way:
            self._crew.drop([pending.work for pending in self._under_way])
            self._under_way.clear()


class _Pending(NamedTuple):
    """A batch that is being made."""

    position: Position
    work: Work


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise UsageError(message)


def _check_cores(cores: Sequence[int]) -> None:
    if not cores:
        return
    _require(hasattr(os, "sched_setaffinity"), f"cores={tuple(cores)!r}: this system can't pin threads. Leave it out.")

    def try_out() -> set[int]:
        pin(tuple(cores))
        return os.sched_getaffinity(0)

    # In a thread of its own: the calling one may be kept to other cores, which says nothing about workers.
    with ThreadPoolExecutor(1) as pool:
        try:
            granted = pool.submit(try_out).result()
        except (OSError, OverflowError):
            granted = set()
    _require(granted == set(cores), f"cores={tuple(cores)!r}: only {sorted(granted)!r} of these exist and are allowed.")
