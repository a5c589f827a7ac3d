import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boxwright.core.errors import UsageError
from boxwright.data.batch import Batch, Position
from boxwright.data.dataset import DetectionDataset
from boxwright.data.loader import Loader
from boxwright.data.policy import policy_for
from boxwright.data.records import Records

SIZE = (64, 96)
FULL = policy_for("yolox_s")
FIXED = replace(FULL, multiscale=None)


def take(dataset: DetectionDataset, batches: int, **options: Any) -> list[Batch]:
    options = {"batch_size": 4, "infinite": True} | options
    with Loader(dataset, **options) as loader:
        return [batch for _, batch in zip(range(batches), loader, strict=False)]


def digest(batches: list[Batch]) -> str:
    found = hashlib.sha256()
    for batch in batches:
        for array in (batch.images, batch.targets, batch.image_ids):
            found.update(str(array.shape).encode() + array.tobytes())
        found.update(str(batch.position).encode())
    return found.hexdigest()


def ids(batches: list[Batch]) -> list[list[int]]:
    return [batch.image_ids.tolist() for batch in batches]


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_neither_workers_nor_prefetch_change_a_batch(training: DetectionDataset, workers: int, prefetch: int) -> None:
    expected = digest(take(training, 12, workers=0))
    assert digest(take(training, 12, workers=workers, prefetch=prefetch)) == expected


def test_two_ranks_share_out_what_one_process_would_get(training: DetectionDataset) -> None:
    alone = take(training, 8, batch_size=4)
    pair = [take(training, 8, batch_size=2, rank=rank, world_size=2) for rank in (0, 1)]
    for one, first, second in zip(alone, *pair, strict=True):
        assert np.array_equal(one.images, np.concatenate((first.images, second.images)))
        assert one.image_ids.tolist() == [*first.image_ids, *second.image_ids]


def test_other_processes_make_the_same_batches(training: DetectionDataset, tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_loader import *\n"
        "from boxwright.data.formats import read_records\n"
        "dataset = DetectionDataset(read_records(sys.argv[2]), SIZE, policy=FULL, seed=11)\n"
        "print(digest(take(dataset, 5, batch_size=2, rank=int(sys.argv[3]), world_size=2)))\n"
    )
    root = training.records.root.parent
    tests = Path(__file__).parents[2]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(Path(__file__).parent), str(root), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(tests)])},
        )
        for rank in (0, 1)
    ]
    for rank, process in enumerate(processes):
        expected = digest(take(training, 5, batch_size=2, rank=rank, world_size=2))
        assert process.communicate(timeout=120)[0].strip() == expected


@pytest.mark.parametrize("stop", [1, 3, 5, 7, 12])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_resumed_in_mid_epoch_goes_on_bit_for_bit(training: DetectionDataset, stop: int, workers: int) -> None:
    whole = take(training, 15, workers=workers)
    with Loader(training, batch_size=4, workers=workers, infinite=True) as loader:
        for _, _ in zip(range(stop), loader, strict=False):
            pass
        position = loader.position
    again = DetectionDataset(training.records, SIZE, policy=FULL, seed=11)
    rest = take(again, 15 - stop, workers=workers, start=tuple(position))
    assert digest(rest) == digest(whole[stop:])


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_without_drop_last_an_epoch_touches_every_image_once(training: DetectionDataset, world_size: int) -> None:
    parts = []
    for rank in range(world_size):
        with Loader(training, batch_size=4, rank=rank, world_size=world_size, drop_last=False) as loader:
            parts.append(ids(list(loader)))
    assert len({len(part) for part in parts}) == 1
    assert sorted(i for part in parts for batch in part for i in batch) == list(range(22))


def test_a_rank_that_would_get_nothing_is_given_an_image_again(training: DetectionDataset) -> None:
    # 22 = 7 runs of 3, and one image for three processes.
    last = [take(training, 8, batch_size=1, rank=r, world_size=3, drop_last=False)[7] for r in range(3)]
    assert [len(batch) for batch in last] == [1, 1, 1]


def test_drop_last_leaves_out_what_does_not_fill_a_batch_for_all(training: DetectionDataset) -> None:
    with Loader(training, batch_size=4, world_size=2) as loader:
        assert len(loader) == 2
        assert [len(batch) for batch in loader] == [4, 4]


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_batch_larger_than_the_set_works(training: DetectionDataset, drop_last: bool, world_size: int) -> None:
    found = []
    for rank in range(world_size):
        with Loader(training, batch_size=64, rank=rank, world_size=world_size, drop_last=drop_last) as loader:
            (batch,) = loader
            found += batch.image_ids.tolist()
    assert sorted(found) == list(range(22))


def test_a_set_of_one_image_works(records: Records) -> None:
    dataset = DetectionDataset(records.select([3]), SIZE, policy=FULL)
    batches = take(dataset, 5, batch_size=8, world_size=2, rank=1)
    assert ids(batches) == [[3]] * 5


def test_a_second_loop_goes_on_with_the_next_epoch(training: DetectionDataset) -> None:
    with Loader(training, batch_size=5) as loader:
        first, second = list(loader), list(loader)
    assert [b.position for b in first] == [(0, b) for b in range(4)]
    assert [b.position for b in second] == [(1, b) for b in range(4)]
    assert ids(first) != ids(second)


def test_a_loop_that_was_left_goes_on_where_it_was(training: DetectionDataset) -> None:
    expected = ids(take(training, 6))
    with Loader(training, batch_size=4, infinite=True) as loader:
        # A fresh iterator for each step must not see the first batch for ever.
        found = [next(iter(loader)).image_ids.tolist() for _ in range(6)]
    assert found == expected


def test_position_is_the_batch_that_comes_next(training: DetectionDataset) -> None:
    with Loader(training, batch_size=8) as loader:
        assert loader.position == Position(0, 0)
        positions = [loader.position for _ in loader]
        assert positions == [(0, 1), (1, 0)]
    with Loader(training, batch_size=8, start=(5, 1)) as loader:
        assert [batch.position for batch in loader] == [(5, 1)]


def test_batches_change_size_every_ten_and_all_ranks_agree(training: DetectionDataset) -> None:
    pair = [
        [b.images.shape[1:3] for b in take(training, 22, batch_size=1, rank=r, world_size=2, workers=0)] for r in (0, 1)
    ]
    assert pair[0] == pair[1]
    assert len(set(pair[0][:10])) == 1
    assert len({b.images.shape for e in range(8) for b in take(training, 1, start=(e, 0))}) > 2


def test_more_boxes_than_the_fixed_number_are_counted_and_said_once(
    records: Records, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = DetectionDataset(records, SIZE, policy=replace(FIXED, scale=(0.4, 0.5)), seed=1)
    whole = take(dataset, 5)
    with Loader(dataset, batch_size=4, max_boxes=3, infinite=True) as loader:
        cut = [batch for _, batch in zip(range(5), loader, strict=False)]
        dropped = loader.dropped_boxes
    counts = np.concatenate([(batch.targets[..., 3] > 0).sum(axis=1) for batch in whole])
    assert dropped == (counts - 3).clip(0).sum() > 0
    assert all(batch.targets.shape[1] == 3 for batch in cut)
    assert caplog.text.count("max_boxes=3") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"rank": 2, "world_size": 2},
        {"workers": -1},
        {"prefetch": 0},
        {"max_boxes": 0},
        {"start": (0, 5)},
    ],
)
def test_numbers_that_do_not_fit_are_refused(training: DetectionDataset, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Loader(training, **({"batch_size": 5} | wrong))
