"""How loaders are shared among processes."""

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler

from boxwright.accel.loaders import NanoLoader, share
from boxwright.core.errors import UsageError

DATA = TensorDataset(torch.arange(10))


def read(loader: object, passes: int = 1) -> list[list[int]]:
    wrapped = NanoLoader(loader, None)
    return [[int(i) for (batch,) in wrapped for i in batch] for _ in range(passes)]


def shares(loader: DataLoader, world_size: int = 2, passes: int = 1) -> list[list[list[int]]]:
    return [read(share(loader, rank=r, world_size=world_size, seed=3), passes) for r in range(world_size)]


def test_an_unshuffled_loader_stays_in_order() -> None:
    (first,), (second,) = shares(DataLoader(DATA, batch_size=2))
    assert first == [0, 2, 4, 6, 8]
    assert second == [1, 3, 5, 7, 9]


def test_a_shuffled_loader_is_shuffled_anew_each_epoch_and_covers_everything() -> None:
    first, second = shares(DataLoader(DATA, batch_size=2, shuffle=True), passes=2)
    for epoch in (0, 1):
        assert sorted(first[epoch] + second[epoch]) == list(range(10))
    assert first[0] != first[1], "set_epoch was called"


class EvensFirst(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([0, 2, 4, 6, 8, 1, 3, 5, 7, 9])

    def __len__(self) -> int:
        return 10


def test_a_sampler_of_ones_own_is_kept_and_dealt_out() -> None:
    (first,), (second,) = shares(DataLoader(DATA, batch_size=5, sampler=EvensFirst()))
    assert first == [0, 4, 8, 3, 7]
    assert second == [2, 6, 1, 5, 9]


class RandomOrder(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(10).tolist())

    def __len__(self) -> int:
        return 10


def test_a_random_sampler_of_ones_own_draws_the_same_order_in_every_process() -> None:
    before = torch.get_rng_state()
    parts = []
    for rank in range(2):
        torch.manual_seed(rank)  # processes whose random numbers have drifted apart
        parts.append(read(share(DataLoader(DATA, sampler=RandomOrder()), rank=rank, world_size=2, seed=0), 2))
    for epoch in (0, 1):
        assert sorted(parts[0][epoch] + parts[1][epoch]) == list(range(10))
    assert parts[0][0] != parts[0][1]
    torch.set_rng_state(before)


class Pairs(BatchSampler):
    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 9], [1, 8], [2, 7], [3, 6], [4, 5]])

    def __len__(self) -> int:
        return 5


def test_a_batch_sampler_of_ones_own_keeps_its_batches() -> None:
    loaders = [share(DataLoader(DATA, batch_sampler=Pairs()), rank=r, world_size=2, seed=0) for r in range(2)]
    batches = [[b.tolist() for (b,) in NanoLoader(loader, None)] for loader in loaders]
    assert batches[0] == [[0, 9], [2, 7], [4, 5]]
    assert batches[1] == [[1, 8], [3, 6], [0, 9]], "as many for each; the first comes again"
    assert [len(loader) for loader in loaders] == [3, 3]


def test_torchs_own_batch_sampler_keeps_its_batches_too() -> None:
    batches = BatchSampler(SequentialSampler(DATA), 4, drop_last=False)
    assert shares(DataLoader(DATA, batch_sampler=batches)) == [[[0, 1, 2, 3, 8, 9]], [[4, 5, 6, 7, 0, 1, 2, 3]]]
    drawn = BatchSampler(RandomSampler(DATA), 5, drop_last=False)
    first, second = shares(DataLoader(DATA, batch_sampler=drawn), passes=2)
    assert all(sorted(first[epoch] + second[epoch]) == list(range(10)) for epoch in (0, 1))
    assert first[0] != first[1], "drawn anew"


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_an_iterable_data_set_is_left_alone_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    loader = DataLoader(Stream())
    assert share(loader, rank=1, world_size=2, seed=0) is loader
    assert "each of them reads all of it" in caplog.text


def test_a_sampler_that_knows_its_rank_is_left_alone() -> None:
    loader = DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=2, rank=1))
    assert share(loader, rank=0, world_size=2, seed=0) is loader


def test_settings_of_the_loader_are_kept() -> None:
    def collate(items: list[tuple[torch.Tensor]]) -> str:
        return "collated"

    loader = DataLoader(DATA, batch_size=3, drop_last=True, collate_fn=collate)
    own = share(loader, rank=0, world_size=2, seed=0)
    assert (own.batch_size, own.drop_last, own.collate_fn) == (3, True, collate)


def test_one_process_gets_the_loader_itself() -> None:
    loader = DataLoader(DATA)
    assert share(loader, rank=0, world_size=1, seed=0) is loader


class Special(DataLoader):  # type: ignore[type-arg]
    def __init__(self, extra: int) -> None:
        super().__init__(DATA)
        self.extra = extra


def test_a_loader_class_that_cannot_be_rebuilt_is_refused() -> None:
    with pytest.raises(UsageError, match="'Special' can't be split among 2 processes"):
        share(Special(1), rank=0, world_size=2, seed=0)
