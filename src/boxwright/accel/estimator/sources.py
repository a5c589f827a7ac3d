"""Where batches come from: a creator, a loader, or a table; how they are shared for training and dealt for scoring.

Training may repeat a few samples so that all workers take the same number of steps. Scoring never does: batches are
dealt out whole, each to one worker, and carry their number, so that results can be put back in order.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from boxwright.accel.loaders import NanoLoader, can_rebuild, knows_ranks, move, seeded, settings_of
from boxwright.accel.nano import TorchNano
from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger

_log = get_logger(__name__)
_END = object()


class Source(Protocol):
    """Data on its way to a worker: small enough to be sent, opened on the other side."""

    def open_training(self, nano: TorchNano, config: dict[str, Any]) -> NanoLoader:
        """Return this worker's share, to be read once an epoch."""
        ...

    def open_whole(self, nano: TorchNano, config: dict[str, Any]) -> Iterator[tuple[int, Any]]:
        """Return this worker's numbered batches; over all workers, each batch of the set comes once."""
        ...


@dataclass(frozen=True)
class Sharded:
    """A loader that holds this worker's own part already; it is read as it is.

    A data creator returns it when it has split the data itself, by rank. That each sample is in one part is then the
    creator's word.

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
        """Refuse before the training what could only be refused after its first epoch.

        Raises:
            UsageError: there is no batch size, and the creator makes no batches of its own.
        """
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
    """Return whether a loader has no batches, and nothing in it says that its items are some already."""
    if not isinstance(loader, DataLoader) or loader.batch_sampler is not None:
        return False
    return not isinstance(loader.dataset, IterableDataset) and not isinstance(loader.sampler, BatchSampler)


@dataclass(frozen=True, kw_only=True)
class LoaderSource:
    """A loader that was made by the caller and is sent to the workers; its batch size is that of all together."""

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

    Raises:
        UsageError: the batch size can't be divided evenly.
    """
    if workers == 1 or not isinstance(loader, DataLoader) or loader.batch_size is None:
        return loader
    if isinstance(loader.dataset, IterableDataset) or not can_rebuild(loader) or knows_ranks(loader.sampler):
        return loader
    return DataLoader(
        loader.dataset,
        batch_size=divide_batch(loader.batch_size, workers),
        sampler=loader.sampler,
        drop_last=loader.drop_last,
        **settings_of(loader),
    )


def divide_batch(batch_size: int, workers: int) -> int:
    """Return one worker's part of a batch.

    Raises:
        UsageError: it is no positive number, or can't be divided evenly.
    """
    if batch_size < 1:
        raise UsageError(f"batch_size={batch_size!r} is not possible. Use at least 1.")
    if batch_size % workers:
        below = batch_size - batch_size % workers
        raise UsageError(
            f"batch_size={batch_size!r} is for all workers together and can't be shared by {workers} evenly. "
            f"Use {below + workers if below == 0 else f'{below} or {below + workers}'}."
        )
    return batch_size // workers


class _EveryNth(Sampler[Any]):
    """Every n-th entry of a sampler, none twice; drawn with the same random numbers in every worker."""

    def __init__(self, entries: Any, rank: int, world_size: int, seed: int) -> None:
        self._entries = entries
        self._rank, self._world_size, self._seed = rank, world_size, seed

    def __iter__(self) -> Iterator[Any]:
        with seeded(self._seed):
            drawn = list(self._entries)
        return iter(drawn[self._rank :: self._world_size])


def deal(loader: Any, nano: TorchNano, seed: int) -> Iterator[tuple[int, Any]]:
    """Yield this worker's batches of the whole set with their numbers: batch k goes to worker k modulo n.

    A plain `DataLoader` reads only its worker's samples. What can't be rebuilt is read by every worker, which keeps
    its own batches.

    Raises:
        UsageError: the loader's sampler has split the data by rank, and may have padded it.
    """
    rank, size = nano.global_rank, nano.world_size
    if isinstance(loader, Sharded):
        for number, batch in enumerate(loader.loader):
            yield number * size + rank, move(batch, nano.device)
        return
    if size == 1:
        for number, batch in enumerate(loader):
            yield number, move(batch, nano.device)
        return
    ours: Iterable[Any]
    if isinstance(loader, DataLoader) and (knows_ranks(loader.sampler) or knows_ranks(loader.batch_sampler)):
        raise UsageError(
            "The loader's sampler is split by rank already, and such samplers repeat samples until all workers have as "
            "many: they would count twice. Give a loader over the whole set, or wrap one without repeats in Sharded()."
        )
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset) and can_rebuild(loader):
        ours = _rebuild(loader, rank, size, seed)
    else:
        _log.info("A %s can't be split: every worker reads all of it and keeps its own batches.", type(loader).__name__)
        with seeded(seed):
            for number, batch in islice(enumerate(loader), rank, None, size):
                yield number, move(batch, nano.device)
        return
    for number, batch in enumerate(ours):
        yield number * size + rank, move(batch, nano.device)


def _rebuild(loader: DataLoader[Any], rank: int, size: int, seed: int) -> DataLoader[Any]:
    kept = settings_of(loader)
    if loader.batch_sampler is None:  # no batching: the data set gives whole batches
        return DataLoader(loader.dataset, batch_size=None, sampler=_EveryNth(loader.sampler, rank, size, seed), **kept)
    own: BatchSampler = _EveryNth(loader.batch_sampler, rank, size, seed)  # type: ignore[assignment]
    return DataLoader(loader.dataset, batch_sampler=own, **kept)


def in_step(nano: TorchNano, loader: NanoLoader) -> Iterator[Any]:
    """Yield batches as long as every worker has one: none is left waiting in a collective for another."""
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
                _log.warning("The epoch ends after %d steps: a worker has no batch left, this one has.", number)
            return
        yield batch


def _has_length(loader: NanoLoader) -> bool:
    try:
        len(loader)
    except (TypeError, AttributeError, NotImplementedError):
        return False
    return True
