"""`Loader`: batches of a data set, made ahead by workers, for one of several training processes."""

from collections import deque
from collections.abc import Iterator
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import UsageError, check_choice
from boxwright.core.log import get_logger
from boxwright.data.batch import Batch, PendingBatch, Position, pad_targets
from boxwright.data.dataset import DetectionDataset, Purpose, stream
from boxwright.data.forks import ForkedWorkers
from boxwright.data.workers import SampleWorkers, WorkerKind

_log = get_logger(__name__)

# The image size changes every 10 batches, as in YOLOX.
_SIZE_BATCHES = 10


class Loader:
    """Batches of a data set for one of several processes; iterate over it for the batches of an epoch.

    The loader remembers its position: a second `for` loop continues with the next epoch, and one left early with
    `break` continues where it stopped. `position` is all that a checkpoint needs: a loader that starts there returns
    the batches that would have followed. Neither the number of workers nor `prefetch` changes a sample.

    Batch k of an epoch is the k-th run of `batch_size * world_size` images in the epoch's shuffled order, and each
    process takes its `batch_size` of them. All processes have the same number of batches. `drop_last` leaves out the
    images that don't fill one, unless there would be no batch at all; without it the last run is split as evenly as
    possible, and only a process that would get nothing repeats an image.

    Of a set in shards, each process takes a part of the epoch's order that is in one piece, so that it needs few of the
    shards.

    Worker threads share the cache, and nearly all of their work is in OpenCV, which releases Python's lock. While a
    loader with worker threads is open, OpenCV's own threads are off in this process. A fifth of the work still holds
    the lock, which delays a caller that has to keep a device busy. Worker processes don't delay it; they share the
    cache too, and cost memory of their own.

    Args:
        dataset: what to load.
        batch_size: images in a batch of this process.
        rank: which of the processes this is.
        world_size: how many there are.
        workers: threads or processes that make samples ahead; 0 makes each batch when it is asked for.
        prefetch: how many batches may be pending or ready.
        drop_last: see above.
        infinite: continue with the next epoch without end, instead of stopping after each.
        start: where to begin.
        max_boxes: always pad targets to this many boxes; of more, the largest are kept and `dropped_boxes` counts the
            others. None pads to what the batch needs, in steps of 8, and drops nothing.
        worker_kind: "threads" or "processes", see above.

    Raises:
        UsageError: an argument is out of range, or this system has no worker processes.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from boxwright.data.policy import policy_for
        >>> from boxwright.data.synthetic import generate_scenes
        >>> with TemporaryDirectory() as folder:
        ...     records = generate_scenes(folder, images=5, seed=0, size_hw=(64, 64))
        ...     dataset = DetectionDataset(records, (64, 64), policy=policy_for("yolox_nano").no_aug())
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
        drop_last: bool = True,
        infinite: bool = False,
        start: tuple[int, int] = Position(),
        max_boxes: int | None = None,
        worker_kind: WorkerKind = "threads",
    ) -> None:
        _require(batch_size >= 1, f"batch_size={batch_size!r}: a batch has at least one image.")
        _require(0 <= rank < world_size, f"rank={rank!r} does not fit world_size={world_size!r}: it counts from 0.")
        _require(workers >= 0, f"workers={workers!r} is negative. Use 0 to make batches when they are asked for.")
        _require(prefetch >= 1, f"prefetch={prefetch!r}: at least one batch must be pending.")
        _require(max_boxes is None or max_boxes >= 1, f"max_boxes={max_boxes!r} leaves no box. Use 1 or more, or None.")
        check_choice("worker_kind", worker_kind, get_args(WorkerKind))
        _require(worker_kind == "threads" or workers > 0, "worker_kind='processes' and workers=0. Use 1 or more.")
        self.dataset = dataset
        self.batch_size = batch_size
        self.dropped_boxes = 0
        self._rank, self._world_size = rank, world_size
        self._drop_last, self._infinite, self._max_boxes = drop_last, infinite, max_boxes
        self._prefetch = prefetch if workers else 1
        self._pending: deque[PendingBatch] = deque()
        self._closed = False
        self._position = Position(*start)
        if self._position.epoch < 0 or not 0 <= self._position.batch < len(self):
            raise UsageError(f"start={tuple(start)!r}: an epoch has batches 0 to {len(self) - 1}.")
        self._workers: SampleWorkers | ForkedWorkers
        if worker_kind == "threads":
            self._workers = SampleWorkers(dataset, workers)
        else:
            height, width = dataset.policy.largest_hw(dataset.size_hw)
            self._workers = ForkedWorkers(
                dataset, workers, batch_bytes=batch_size * height * width * 3, prefetch=prefetch
            )
        self._ahead = workers > 0

    def __len__(self) -> int:
        """How many batches an epoch has for this process."""
        images, run = len(self.dataset), self.batch_size * self._world_size
        if self.dataset.in_shards:
            images -= images % self._world_size
        return max(images // run, 1) if self._drop_last else -(-images // run)

    @property
    def position(self) -> Position:
        """The batch that comes next."""
        return self._position

    def __iter__(self) -> Iterator[Batch]:
        epoch = self._position.epoch
        while self._infinite or self._position.epoch == epoch:
            yield self._next_batch()

    def close(self) -> None:
        """Stop the workers and wait for them; pending batches are lost, `position` is not."""
        if self._closed:
            return
        self._closed = True
        self._abandon()
        self._workers.close()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next_batch(self) -> Batch:
        if self._closed:
            raise UsageError("This loader is closed. Make another one, with start=loader.position to continue.")
        self._run_ahead()
        pending = self._pending[0]
        try:
            images, rows = self._workers.finish(pending)
        except BaseException:
            self._abandon()  # all of it, so that the next call makes this batch again and not the one after it
            raise
        self._pending.popleft()
        self._position = self._following(pending.position)
        if self._ahead and (self._infinite or self._position.epoch == pending.position.epoch):
            self._run_ahead()  # while the caller uses this batch
        targets, dropped = pad_targets(rows, self._max_boxes)
        if dropped and not self.dropped_boxes:
            _log.warning(
                "An image has more than max_boxes=%d boxes: the largest are kept. See Loader.dropped_boxes.",
                self._max_boxes,
            )
        self.dropped_boxes += dropped
        image_ids = self.dataset.records.image_ids[pending.indices]
        return Batch(images=images, targets=targets, image_ids=image_ids, position=pending.position)

    def _run_ahead(self) -> None:
        """Start as many batches as may be pending."""
        while len(self._pending) < self._prefetch:
            position = self._following(self._pending[-1].position) if self._pending else self._position
            if position.epoch != self._position.epoch and not self._infinite:
                return
            # All processes draw the same size.
            rng = stream(self.dataset.seed, Purpose.SIZE, position.epoch, position.batch // _SIZE_BATCHES)
            size_hw = self.dataset.policy.batch_size_hw(self.dataset.size_hw, float(rng.random()))
            self._pending.append(self._workers.begin(position, self._indices(position).tolist(), size_hw))

    def _indices(self, position: Position) -> NDArray[np.int64]:
        """Return the images of this process' part of a batch."""
        order, images = self.dataset.order(position.epoch), self.batch_size * self._world_size
        if self.dataset.in_shards:
            own = len(order) // self._world_size
            part = order[self._rank * own :][:own][position.batch * self.batch_size :][: self.batch_size]
        else:
            run = order[position.batch * images :][:images]
            part = np.array_split(run, self._world_size)[self._rank]
        # Every process must take part in every step.
        return part if len(part) else order[self._rank % len(order) :][:1]

    def _following(self, position: Position) -> Position:
        if position.batch + 1 < len(self):
            return Position(position.epoch, position.batch + 1)
        return Position(position.epoch + 1)

    def _abandon(self) -> None:
        """Drop the pending batches."""
        if self._pending:
            self._workers.drop(self._pending)
            self._pending.clear()


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise UsageError(message)
