"""A user's data loaders in a run of several processes: each process sees its own share, in the intended order."""

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


class Share(Sampler[Any]):
    """Every n-th sample or batch of a user's own sampler or batch sampler.

    Every process draws the same entries, from the seed and the epoch, and takes its own. All processes get the same
    number: if the entries can't be divided evenly, the first ones come again at the end, unless `repeat` is False. Of a
    sampler without a length, which may be endless, each process takes every n-th entry as they come: it must give all
    processes the same ones.
    """

    def __init__(self, sampler: Any, rank: int, world_size: int, seed: int, *, repeat: bool = True) -> None:
        self.sampler = sampler
        self._rank, self._world_size, self._seed, self._repeat = rank, world_size, seed, repeat
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Draw the next pass for this epoch, and tell the user's sampler if it has a `set_epoch`."""
        self._epoch = epoch
        for sampler in (self.sampler, getattr(self.sampler, "sampler", None)):
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)  # type: ignore[union-attr]

    def __iter__(self) -> Iterator[Any]:
        if self._repeat and not hasattr(self.sampler, "__len__"):  # perhaps endless: it can't be drawn beforehand
            return islice(iter(self.sampler), self._rank, None, self._world_size)
        with seeded(self._seed + self._epoch):
            drawn = list(self.sampler)
        if not self._repeat:
            return iter(drawn[self._rank :: self._world_size])
        whole = math.ceil(len(drawn) / self._world_size) * self._world_size
        return islice(cycle(drawn), self._rank, whole, self._world_size)

    def __len__(self) -> int:
        return math.ceil(len(self.sampler) / self._world_size)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block with torch's, Python's and numpy's random numbers seeded, and restore them afterwards."""
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
    """A loader whose batches arrive on the right device, and whose sampler gets the number of each epoch."""

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
        """Set the epoch of the next pass; without it passes are counted from 0."""
        self._epoch = epoch - 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)


def _feed(batches: Iterable[Any], device: torch.device) -> Iterator[Any]:
    for batch in batches:
        yield move(batch, device)


def share(loader: Any, *, rank: int, world_size: int, seed: int) -> Any:
    """Return a loader over this process's share of the data.

    - A shuffled loader is shuffled again each epoch, one order for all; an unshuffled one stays in order.
    - The indices or batches of a user's own sampler or batch sampler are dealt out.
    - A sampler that knows about ranks, an `IterableDataset` and anything but a torch `DataLoader` are left alone: only
      their author knows how they are split.

    Raises:
        UsageError: the loader can't be rebuilt.
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
    # With a batch size, a plain BatchSampler is torch's own; one without is the user's.
    if loader.batch_sampler is not None and (
        loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler
    ):
        return rebuild(loader, batch_sampler=Share(loader.batch_sampler, rank, world_size, seed))
    sampler: Any = loader.sampler
    shuffle = isinstance(sampler, RandomSampler)
    plain = type(sampler) in (RandomSampler, SequentialSampler)
    if not plain or (shuffle and (sampler.replacement or sampler._num_samples is not None)):
        sampler = Share(sampler, rank, world_size, seed)
    else:
        sampler = DistributedSampler(
            loader.dataset, num_replicas=world_size, rank=rank, shuffle=shuffle, seed=seed, drop_last=loader.drop_last
        )
    return rebuild(loader, batch_size=loader.batch_size, sampler=sampler, drop_last=loader.drop_last)


def can_rebuild(loader: DataLoader[Any]) -> bool:
    """Return whether a loader has the constructor of torch's own, so that one like it can be made."""
    return type(loader) is DataLoader or type(loader).__init__ is DataLoader.__init__


def rebuild(loader: DataLoader[Any], **chooser: Any) -> DataLoader[Any]:
    """Return a `DataLoader` that works like this one, with another choice of samples."""
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
    return DataLoader(loader.dataset, **kept, **chooser)


def knows_ranks(sampler: Any) -> bool:
    """Return whether a sampler, or one inside it, already splits by rank."""
    while sampler is not None:
        names = {name.lstrip("_") for name in getattr(sampler, "__dict__", {})}
        if "rank" in names and names & {"num_replicas", "world_size"}:
            return True
        sampler = getattr(sampler, "sampler", None)
    return False
