import gc
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from boxwright.core.errors import DataError, UsageError, WorkerError
from boxwright.data.dataset import DetectionDataset, Sample
from boxwright.data.loader import Loader
from boxwright.data.policy import policy_for
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes

SIZE = (64, 96)
FULL = policy_for("yolox_s")


class FaultyDataset(DetectionDataset):
    """Fails at one image with an unexpected error."""

    def sample(self, epoch: int, index: int, **options: Any) -> Sample:
        if index == 7:
            raise ZeroDivisionError("division by zero")
        return super().sample(epoch, index, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failure_in_a_worker_names_the_sample(records: Records, workers: int) -> None:
    dataset = FaultyDataset(records, SIZE, policy=FULL)
    with Loader(dataset, batch_size=4, workers=workers, drop_last=False) as loader:
        with pytest.raises(WorkerError, match=r"'000007.jpg' \(image 7, epoch 0\).*ZeroDivisionError") as caught:
            list(loader)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        failed = loader.position
        with pytest.raises(WorkerError):
            next(iter(loader))
        assert loader.position == failed


def broken_copy(records: Records, folder: Path, broken: list[int]) -> Records:
    generate_scenes(folder, images=len(records), seed=5, size_hw=(80, 120))
    copy = replace(records, root=folder / "images")
    for index in broken:
        copy.path(index).write_bytes(b"")
    return copy


def test_bad_images_do_not_stop_training(records: Records, tmp_path: Path) -> None:
    dataset = DetectionDataset(broken_copy(records, tmp_path, [2, 9]), SIZE, policy=FULL)
    runs = []
    for workers in (0, 3):
        with Loader(dataset, batch_size=4, workers=workers, infinite=True) as loader:
            runs.append([batch.images for _, batch in zip(range(15), loader, strict=False)])
    assert sorted(dataset.bad_images) == [2, 9]
    assert [len(images) for images in runs[1]] == [4] * 15
    assert all(np.array_equal(a, b) for a, b in zip(*runs, strict=True))


def test_a_set_of_bad_images_only_ends_training_with_a_data_error(records: Records, tmp_path: Path) -> None:
    dataset = DetectionDataset(broken_copy(records, tmp_path, list(range(22))), SIZE, policy=FULL)
    with Loader(dataset, batch_size=4) as loader, pytest.raises(DataError, match="None of the 22 images"):
        list(loader)


def data_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("boxwright-data")}


def test_closing_leaves_no_thread_even_in_mid_epoch(training: DetectionDataset) -> None:
    loader = Loader(training, batch_size=4, workers=3, prefetch=4, infinite=True)
    next(iter(loader))
    assert len(data_threads()) == 3
    loader.close()
    loader.close()
    assert not data_threads()
    with pytest.raises(UsageError, match="closed"):
        next(iter(loader))


def test_workers_stay_from_one_epoch_to_the_next(training: DetectionDataset) -> None:
    with Loader(training, batch_size=4, workers=2) as loader:
        list(loader)
        before = {thread.ident for thread in threading.enumerate()}
        list(loader)
        assert {thread.ident for thread in threading.enumerate()} == before


def test_no_more_batches_are_under_way_than_allowed(records: Records) -> None:
    made: list[int] = []

    class Counting(DetectionDataset):
        def sample(self, epoch: int, index: int, **options: Any) -> Sample:
            made.append(index)
            return super().sample(epoch, index, **options)

    with Loader(Counting(records, SIZE, policy=FULL), batch_size=2, workers=2, prefetch=3, infinite=True) as loader:
        batches = iter(loader)
        for taken in range(1, 6):
            next(batches)
            assert len(made) <= 2 * (taken + 3)


def test_a_loader_that_is_never_closed_gives_opencv_its_threads_back(training: DetectionDataset) -> None:
    before = cv2.getNumThreads()
    try:
        cv2.setNumThreads(3)
        loader = Loader(training, batch_size=22, workers=1)  # one batch an epoch, so none stays pending
        next(iter(loader))
        del loader
        gc.collect()
        assert cv2.getNumThreads() == 3
    finally:
        cv2.setNumThreads(before)


def test_opencv_has_its_threads_back_when_the_last_loader_closes(training: DetectionDataset) -> None:
    before = cv2.getNumThreads()
    try:
        cv2.setNumThreads(3)
        first, second = (Loader(training, batch_size=4, workers=1) for _ in range(2))
        assert cv2.getNumThreads() == 1
        first.close()
        assert cv2.getNumThreads() == 1
        second.close()
        assert cv2.getNumThreads() == 3
    finally:
        cv2.setNumThreads(before)
