"""How loaders are cut for training and dealt for scoring. The ranks are played one after the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from boxwright.accel.estimator.intake import Intake
from boxwright.accel.estimator.sources import Sharded, cut_batches, deal, divide_batch
from boxwright.core.errors import UsageError

DATA = TensorDataset(torch.arange(11))


CPU = torch.device("cpu")


@dataclass
class Rank:
    """As much of TorchNano as dealing needs."""

    global_rank: int
    world_size: int
    device: torch.device = CPU


def read(make: Any, workers: int) -> list[list[int]]:
    """Return the batches of all workers, put back in the order of their numbers."""
    dealt = [pair for rank in range(workers) for pair in deal(make(), Rank(rank, workers), seed=5)]  # type: ignore[arg-type]
    assert len({number for number, _ in dealt}) == len(dealt)
    return [[int(v) for v in batch[0]] for _, batch in sorted(dealt, key=lambda pair: pair[0])]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.tensor(i),) for i in range(11)])


class OwnLoader(DataLoader[Any]):
    """Built in a way that only its author knows, like YOLOX's."""

    def __init__(self, size: int) -> None:
        super().__init__(DATA, batch_size=size)


class Uneven(BatchSampler):
    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0], [1, 2, 3], [4, 5], [6, 7, 8, 9, 10]])

    def __len__(self) -> int:
        return 4


MAKERS = {
    "plain": lambda: DataLoader(DATA, batch_size=3),
    "batch sampler": lambda: DataLoader(DATA, batch_sampler=Uneven()),
    "whole batches": lambda: DataLoader(TensorDataset(torch.arange(11).reshape(11, 1)), batch_size=None),
    "iterable": lambda: DataLoader(Stream(), batch_size=4),
    "own class": lambda: OwnLoader(4),
    "list": lambda: [(torch.arange(0, 6),), (torch.arange(6, 11),)],
}


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", MAKERS)
def test_scoring_sees_each_sample_once_in_the_loaders_own_batches(kind: str, workers: int) -> None:
    alone = [[int(v) for v in batch[0]] for batch in MAKERS[kind]()]
    assert read(MAKERS[kind], workers) == alone
    assert [v for batch in alone for v in batch] == list(range(11))


@pytest.mark.parametrize("workers", [2, 3])
def test_a_shuffled_loader_is_dealt_from_one_order(workers: int) -> None:
    found = read(lambda: DataLoader(DATA, batch_size=3, sampler=RandomSampler(DATA)), workers)
    assert sorted(v for batch in found for v in batch) == list(range(11))


def test_a_sampler_that_pads_by_rank_is_refused() -> None:
    sampler = DistributedSampler(DATA, num_replicas=2, rank=0)
    with pytest.raises(UsageError, match="would count twice"):
        list(deal(DataLoader(DATA, sampler=sampler), Rank(0, 2), seed=0))  # type: ignore[arg-type]


def test_a_part_of_ones_own_is_read_as_it_is() -> None:
    assert [n for n, _ in deal(Sharded([1, 2]), Rank(1, 3), seed=0)] == [1, 4]  # type: ignore[arg-type]


def test_a_loaders_batch_is_cut_and_everything_else_stays() -> None:
    loader = DataLoader(DATA, batch_size=6, drop_last=True, collate_fn=list)
    cut = cut_batches(loader, 3)
    assert (cut.batch_size, cut.drop_last, cut.collate_fn, cut.dataset) == (2, True, list, DATA)
    assert cut_batches(loader, 1) is loader
    own = DataLoader(DATA, batch_sampler=Uneven())
    assert cut_batches(own, 3) is own


def test_a_data_set_is_shared_by_its_workers_and_shuffled_for_training_only() -> None:
    intake = Intake(elsewhere=False, cache_dir=None, seed=0)
    trained: Any = intake.open(DATA, 6, (None, None), workers=3, shuffle=None)
    assert isinstance(trained.loader.sampler, RandomSampler)
    assert cut_batches(trained.loader, 3).batch_size == 2
    scored: Any = intake.open(DATA, 6, (None, None))
    assert isinstance(scored.loader.sampler, SequentialSampler)


@pytest.mark.parametrize(("size", "message"), [(7, "Use 6 or 9"), (2, r"Use 3\.")])
def test_a_batch_that_can_not_be_shared_evenly_is_refused(size: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        divide_batch(size, 3)
