"""Where batches come from: a creator, a loader, or a table; how they are shared for training and dealt for scoring.

Training may repeat a few samples so that all workers take the same number of steps. Scoring never does: each batch
goes whole to one worker, with its number, so that results can be put back in order.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Protocol

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from boxwright.accel.loaders import NanoLoader, Share, can_rebuild, knows_ranks, move, rebuild, seeded
from boxwright.accel.nano import TorchNano
from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger

_log = get_logger(__name__)
_END = object()


class BatchSource(Protocol):
    """Data on its way to a worker: small enough to be sent, opened there."""

    def open_training(self, nano: TorchNano, config: dict[str, Any]) -> NanoLoader:
        """Return this worker's share, to be read once per epoch."""
        ...

    def open_whole(self, nano: TorchNano, config: dict[str, Any]) -> Iterator[tuple[int, Any]]:
        """Return this worker's numbered batches; over all workers, each batch of the set comes once."""
        ...


@dataclass(frozen=True)
class Sharded:
    """A loader that already holds this worker's part; it is read as it is.

    A data creator returns it when it has split the data by rank itself. The creator is then responsible for putting
    each sample into one part.

    Attributes:
        loader: anything that gives batches.
    """

    loader: Iterable[Any]


@dataclass(frozen=True, kw_only=True)
class CreatorSource:
    """Batches from `creator(config, batch_size)`, called inside the worker with the batch size of one worker."""

    creator: Callable[[dict[str, Any], int | None], Any]
    batch_size: int | None
    seed: int

    def open_training(self, nano: TorchNano, config: dict[str, Any]) -> NanoLoader:
        """Return this worker's share."""
        return _share(nano, self._create(config))

    def open_whole(self, nano: TorchNano, config: dict[str, Any]) -> Iterator[tuple[int, Any]]:
        """Return this worker's numbered batches."""
        return deal(self._create(config), nano, self.seed)

    def check(self, config: dict[str, Any]) -> None:
        """Fail before the training instead of after its first epoch."""
        if self.batch_size is None:
            self._create(config)

    def _create(self, config: dict[str, Any]) -> Any:
        # The same random numbers everywhere and each time: a creator that splits at random makes one split.
        with seeded(self.seed):
            made = self.creator(config, self.batch_size)
        if not hasattr(made, "__iter__") and not isinstance(made, Sharded):
            raise UsageError(
                f"The data creator returned a {type(made).__name__}, which gives no batches. Return a DataLoader or "
                "another iterable of batches."
            )
        if self.batch_size is None and _gives_samples(made):
            raise UsageError(
                "The data creator was called with batch_size=None and returned a DataLoader that would give single "
                "samples. Give a batch_size (validation_batch_size for validation_data), or let the creator choose "
                "one. If each item of the data set is a whole batch, give the DataLoader itself in place of a creator."
            )
        return made


def _gives_samples(loader: Any) -> bool:
    """Return whether a loader gives single samples: it has no batches, and its items don't look like batches."""
    if not isinstance(loader, DataLoader) or loader.batch_sampler is not None:
        return False
    return not isinstance(loader.dataset, IterableDataset) and not isinstance(loader.sampler, BatchSampler)


@dataclass(frozen=True, kw_only=True)
class LoaderSource:
    """A loader that the caller made and that is sent to the workers; its batch size is that of all together."""

    loader: Any
    seed: int

    def open_training(self, nano: TorchNano, config: dict[str, Any]) -> NanoLoader:  # noqa: ARG002
        """Return this worker's share, in batches that make up the loader's together."""
        return _share(nano, cut_batches(self.loader, nano.world_size))

    def open_whole(self, nano: TorchNano, config: dict[str, Any]) -> Iterator[tuple[int, Any]]:  # noqa: ARG002
        """Return this worker's numbered batches."""
        return deal(self.loader, nano, self.seed)


def _share(nano: TorchNano, loader: Any) -> NanoLoader:
    if isinstance(loader, Sharded):
        return NanoLoader(loader.loader, nano.device)
    ready: NanoLoader = nano.setup_dataloaders(loader)
    return ready


def cut_batches(loader: Any, workers: int) -> Any:
    """Return a loader like this one whose batches are a worker's part of the original ones.

    Batches of a batch sampler of the user's own stay whole: one step then takes one of them in each worker.
    """
    if workers == 1 or not isinstance(loader, DataLoader) or loader.batch_size is None:
        return loader
    if not _can_deal(loader) or knows_ranks(loader.sampler):
        return loader
    size = divide_batch(loader.batch_size, workers)
    return rebuild(loader, batch_size=size, sampler=loader.sampler, drop_last=loader.drop_last)


def divide_batch(batch_size: int, workers: int) -> int:
    """Return one worker's part of a batch."""
    if batch_size % workers:
        below = batch_size - batch_size % workers
        raise UsageError(
            f"batch_size={batch_size!r} is for all workers together and can't be shared by {workers} evenly. "
            f"Use {below + workers if below == 0 else f'{below} or {below + workers}'}."
        )
    return batch_size // workers


def deal(loader: Any, nano: TorchNano, seed: int) -> Iterator[tuple[int, Any]]:
    """Yield this worker's batches of the whole set with their numbers: batch k goes to worker k modulo n.

    A plain `DataLoader` reads only its worker's samples. A loader that can't be rebuilt is read by every worker, which
    keeps its own batches.

    Raises:
        UsageError: the loader's sampler has split the data by rank, and may have padded it.
    """
    rank, workers = nano.global_rank, nano.world_size
    first, step = 0, 1
    splits = workers > 1 and isinstance(loader, DataLoader)
    repeatable: AbstractContextManager[None] = nullcontext()
    if isinstance(loader, Sharded):
        loader = loader.loader
    elif (
        workers > 1
        and isinstance(loader, DataLoader)
        and (knows_ranks(loader.sampler) or knows_ranks(loader.batch_sampler))
    ):
        raise UsageError(
            "The loader's sampler is split by rank already, and such samplers repeat samples until all workers have as "
            "many: they would count twice. Give a loader over the whole set, or wrap one without repeats in Sharded()."
        )
    elif splits and _can_deal(loader):
        own = Share(loader.batch_sampler or loader.sampler, rank, workers, seed, repeat=False)
        # Without a batch sampler the data set gives whole batches.
        chooser = {"batch_sampler": own} if loader.batch_sampler is not None else {"batch_size": None, "sampler": own}
        loader = rebuild(loader, **chooser)
    elif workers > 1:
        _log.info("A %s can't be split: every worker reads all of it and keeps its own batches.", type(loader).__name__)
        first, step, repeatable = rank, workers, seeded(seed)
    with repeatable:
        for number, batch in zip(count(rank, workers), islice(loader, first, None, step), strict=False):
            yield number, move(batch, nano.device)


def _can_deal(loader: DataLoader[Any]) -> bool:
    return not isinstance(loader.dataset, IterableDataset) and can_rebuild(loader)


def in_step(nano: TorchNano, loader: NanoLoader) -> Iterator[Any]:
    """Yield batches as long as every worker has one, so that no worker waits in a collective for another."""
    if not nano.is_distributed:
        yield from loader
        return
    lengths = nano.all_gather({"length": len(loader) if _has_length(loader) else None})
    if lengths[0]["length"] is not None and all(one == lengths[0] for one in lengths):
        yield from loader
        return
    batches = iter(loader)
    for number in range(2**63):
        batch = next(batches, _END)
        have = torch.tensor([float(batch is not _END)], device=nano.device)
        if int(nano.all_reduce(have, "sum")) < nano.world_size:
            if batch is not _END:
                _log.warning("The epoch ends after %d steps: another worker has no batch left, this one has.", number)
            return
        yield batch


def _has_length(loader: NanoLoader) -> bool:
    try:
        len(loader)
    except (TypeError, AttributeError, NotImplementedError):
        return False
    return True
