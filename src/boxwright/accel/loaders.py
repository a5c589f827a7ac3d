"""A user's data loaders in a run of several processes: each process sees its own share, in the order that was meant."""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger
from boxwright.devices.base import move as move

_log = get_logger(__name__)


class ShareOfBatches(Sampler[list[int]]):
    """Every n-th batch of a user's own batch sampler; all processes get the same number of batches.

    Every process draws the same batches, from the seed and the epoch, and takes its own. Where they can't be dealt out
    evenly, the first ones come again at the end. Of a sampler without a length, which may be endless, each process
    takes every n-th batch as they come: it must give all processes the same ones.
    """

    def __init__(self, batches: Iterable[list[int]], rank: int, world_size: int, seed: int) -> None:
        self.batches = batches
        self._rank, self._world_size, self._seed, self._epoch = rank, world_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Draw the next pass for this epoch, and tell the user's sampler if it wants to know."""
        self._epoch = epoch
        for sampler in (self.batches, getattr(self.batches, "sampler", None)):
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)  # type: ignore[union-attr]

    def __iter__(self) -> Iterator[list[int]]:
        if not hasattr(self.batches, "__len__"):  # perhaps endless: it can't be drawn beforehand
            return islice(iter(self.batches), self._rank, None, self._world_size)
        with seeded(self._seed + self._epoch):
            drawn = list(self.batches)
        whole = math.ceil(len(drawn) / self._world_size) * self._world_size
        return islice(cycle(drawn), self._rank, whole, self._world_size)

    def __len__(self) -> int:
        return math.ceil(len(self.batches) / self._world_size)  # type: ignore[arg-type]


class ShareOfSamples(Sampler[int]):
    """Every n-th index of a user's own sampler, as many for each process."""

    def __init__(self, sampler: Any, rank: int, world_size: int, seed: int) -> None:
        self.sampler = sampler
        self._share = ShareOfBatches(sampler, rank, world_size, seed)

    def set_epoch(self, epoch: int) -> None:
        """Draw the next pass for this epoch."""
        self._share.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        return iter(self._share)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._share)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block with torch's, Python's and numpy's random numbers set, and put them back as they were."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - users' samplers draw from the global one
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


class NanoLoader:
    """A loader whose batches come on the right device, and whose sampler hears of every new epoch."""

    def __init__(
        self,
        loader: Any,
        device: torch.device | None,
        feed: Callable[[Iterable[Any], torch.device], Iterator[Any]] | None = None,
    ) -> None:
        self._loader = loader
        self._device = device
        self._feed = feed or _feed
        self._epoch = -1

    def __iter__(self) -> Iterator[Any]:
        self._epoch += 1
        samplers: tuple[Any, ...] = (
            getattr(self._loader, "sampler", None),
            getattr(self._loader, "batch_sampler", None),
            self._loader,
        )
        for sampler in samplers:
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(self._epoch)
        yield from self._loader if self._device is None else self._feed(self._loader, self._device)

    def __len__(self) -> int:
        return len(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next pass is; without it passes are counted from 0."""
        self._epoch = epoch - 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)


def _feed(batches: Iterable[Any], device: torch.device) -> Iterator[Any]:
    for batch in batches:
        yield move(batch, device)


def share(loader: Any, *, rank: int, world_size: int, seed: int) -> Any:
    """Return a loader over this process's share of the data.

    - A shuffled loader is shuffled anew each epoch, the same order cut into shares; an unshuffled one stays in order.
    - A sampler or batch sampler of the user's own is kept and its indices or batches are dealt out.
    - A sampler that is for several processes already, an `IterableDataset` and anything that is no torch `DataLoader`
      are left alone: only their author knows how they are split.

    Raises:
        UsageError: the loader is one that can't be rebuilt.
    """
    if world_size == 1 or not isinstance(loader, DataLoader):
        return loader
    if isinstance(loader.dataset, IterableDataset):
        _log.warning(
            "An IterableDataset is not split among the %d processes: each of them reads all of it, unless its author "
            "splits it by rank.",
            world_size,
        )
        return loader
    if knows_ranks(loader.sampler) or knows_ranks(loader.batch_sampler):
        return loader
    if not can_rebuild(loader):
        raise UsageError(
            f"A loader of class {type(loader).__name__!r} can't be split among {world_size} processes, because only "
            "its author knows how to build it again. Give its sampler a rank and world_size, or use a plain DataLoader."
        )
    kept = settings_of(loader)
    # A plain BatchSampler is the loader's own only where a batch size made it; given by the user, there is no size.
    if loader.batch_sampler is not None and (
        loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler
    ):
        own: Any = ShareOfBatches(loader.batch_sampler, rank, world_size, seed)
        return DataLoader(loader.dataset, batch_sampler=own, **kept)
    sampler: Sampler[int]
    own_sampler: Any = loader.sampler
    plain = type(own_sampler) in (RandomSampler, SequentialSampler)
    shuffle = isinstance(own_sampler, RandomSampler)
    if not plain or (shuffle and (own_sampler.replacement or own_sampler._num_samples is not None)):
        sampler = ShareOfSamples(own_sampler, rank, world_size, seed)
    else:
        sampler = DistributedSampler(
            loader.dataset, num_replicas=world_size, rank=rank, shuffle=shuffle, seed=seed, drop_last=loader.drop_last
        )
    return DataLoader(loader.dataset, batch_size=loader.batch_size, sampler=sampler, drop_last=loader.drop_last, **kept)


def can_rebuild(loader: DataLoader[Any]) -> bool:
    """Return whether a loader is built as torch's own is, so that one like it can be made."""
    return type(loader) is DataLoader or type(loader).__init__ is DataLoader.__init__


def settings_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return what another `DataLoader` needs to work like this one, but for the data set and who chooses samples."""
    kept: dict[str, Any] = {
        name: getattr(loader, name)
        for name in (
            "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context",
            "generator", "persistent_workers", "pin_memory_device", "in_order",
        )
        if hasattr(loader, name)
    }  # fmt: skip
    if loader.num_workers > 0:
        kept["prefetch_factor"] = loader.prefetch_factor
    return kept


def knows_ranks(sampler: Any) -> bool:
    """Return whether a sampler, or one inside it, already deals by rank."""
    while sampler is not None:
        names = {name.lstrip("_") for name in getattr(sampler, "__dict__", {})}
        if "rank" in names and names & {"num_replicas", "world_size"}:
            return True
        sampler = getattr(sampler, "sampler", None)
    return False
