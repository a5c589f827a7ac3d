"""Samples made by processes: the same as by threads, and nothing left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from boxwright.core.errors import DataError, UsageError, WorkerError
from boxwright.data.batch import Batch
from boxwright.data.cache import TileCache, open_cache
from boxwright.data.dataset import DetectionDataset, Sample
from boxwright.data.forks import processes_can_work
from boxwright.data.loader import Loader
from boxwright.data.policy import AugmentPolicy, policy_for
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes
from boxwright.data.tile import FileTiles, Tile, TileRing
from boxwright.data.tile_store import memory_store

pytestmark = pytest.mark.skipif(not processes_can_work(), reason="needs Linux on x86")

SIZE = (64, 96)
FULL = policy_for("yolox_s")


def take(dataset: DetectionDataset, batches: int, **options: Any) -> list[Batch]:
    with Loader(dataset, infinite=True, **options) as loader:
        return [batch for _, batch in zip(range(batches), loader, strict=False)]


@pytest.fixture(name="children")
def new_children() -> Callable[[], list[psutil.Process]]:
    """Return a function that finds the children started since the test began."""
    before = set(psutil.Process().children())

    def find() -> list[psutil.Process]:
        found = set(psutil.Process().children()) - before
        return [child for child in found if child.status() != psutil.STATUS_ZOMBIE]

    return find


Children = Callable[[], list[psutil.Process]]


def wait_until_gone(children: Children) -> None:
    end = time.monotonic() + 10
    while children():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("cache", ["none", "ram", "disk"])
@pytest.mark.parametrize(("batch_size", "workers"), [(4, 2), (5, 3), (1, 1)])
def test_batches_are_those_of_threads(
    records: Records, tmp_path: Path, cache: Any, batch_size: int, workers: int
) -> None:
    folder = tmp_path if cache == "disk" else None
    tiles = open_cache(cache, records, SIZE, folder=folder)
    dataset = DetectionDataset(records, SIZE, policy=FULL, seed=11, tiles=tiles)
    expected = take(dataset, 25, batch_size=batch_size, workers=1)
    # All are kept, which is more than the shared memory holds.
    found = take(dataset, 25, batch_size=batch_size, workers=workers, worker_kind="processes")
    for ours, theirs in zip(found, expected, strict=True):
        assert np.array_equal(ours.images, theirs.images)
        assert np.array_equal(ours.targets, theirs.targets)
        assert np.array_equal(ours.image_ids, theirs.image_ids)
        assert ours.position == theirs.position
    assert len({batch.images.shape[1:] for batch in found}) > 1  # several sizes in the same memory


def test_memory_is_reused_only_when_the_caller_has_released_it(records: Records) -> None:
    dataset = DetectionDataset(records, SIZE, policy=FULL, seed=11)
    expected = [batch.images.copy() for batch in take(dataset, 14, batch_size=4, workers=1)]
    with Loader(dataset, batch_size=4, workers=2, worker_kind="processes", infinite=True) as loader:
        kept = []
        for number, batch in zip(range(14), loader, strict=False):
            assert np.array_equal(batch.images, expected[number])
            if number % 5 == 0:
                kept.append((number, batch.images[1:3]))  # a part holds the whole
            del batch
        for number, part in kept:
            assert np.array_equal(part, expected[number][1:3])
    for number, part in kept:  # and outlives the loader
        assert np.array_equal(part, expected[number][1:3])


@pytest.mark.parametrize("kind", ["ram", "none"])
@pytest.mark.parametrize(("policy", "most"), [(FULL.no_aug(), 28), (FULL, 40)], ids=["alone", "mosaic"])
def test_what_one_process_has_read_is_there_for_all(
    records: Records, tmp_path: Path, kind: str, policy: AugmentPolicy, most: int
) -> None:
    log = tmp_path / "read"

    class Counting(FileTiles):
        def tile(self, index: int) -> Tile:
            with log.open("a") as file:
                file.write(f"{index}\n")
            return super().tile(index)

    files = Counting(records, SIZE)
    dataset = DetectionDataset(
        records,
        SIZE,
        policy=policy,
        tiles=TileCache(files, [memory_store(22, limit_bytes=1 << 30, may_grow=lambda: True)])
        if kind == "ram"
        else TileCache(files),
    )
    take(dataset, 44, batch_size=1, workers=3, worker_kind="processes")  # two epochs
    read = log.read_text().split()
    assert sorted(set(map(int, read))) == list(range(22))
    assert len(read) <= most  # some read the same at once; each for itself would read 37 and 66 on average


def test_a_ram_cache_outlives_its_processes(records: Records) -> None:
    cache = open_cache("ram", records, SIZE)
    dataset = DetectionDataset(records, SIZE, policy=FULL.no_aug(), tiles=cache)
    take(dataset, 22, batch_size=1, workers=2, worker_kind="processes")
    assert len(cache) == 22


@pytest.mark.parametrize("slots", [0, 1, 5, 40])
def test_slots_that_are_written_again_and_again_never_return_other_pixels(records: Records, slots: int) -> None:
    files = FileTiles(records, SIZE)
    ring = TileRing(files, limit_bytes=slots * SIZE[0] * SIZE[1] * 3)
    expected = [files.tile(i).pixels for i in range(22)]

    def read(number: int) -> None:
        ring.write_as(number, 3)
        order = np.random.default_rng(number).integers(0, 22, 1000).tolist()
        assert all(np.array_equal(ring.tile(i).pixels, expected[i]) for i in order)

    readers = [multiprocessing.get_context("fork").Process(target=read, args=(number,)) for number in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [reader.exitcode for reader in readers] == [0, 0, 0]


class Interrupting(np.ndarray):
    """Pixels that stop their writer before it has copied them."""

    def reshape(self, *_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt


def test_a_slot_whose_writer_was_killed_is_read_from_its_file_and_written_again(records: Records) -> None:
    asked: list[int] = []
    killed = False

    class Source(FileTiles):
        def tile(self, index: int) -> Tile:
            asked.append(index)
            tile = super().tile(index)
            return replace(tile, pixels=tile.pixels.view(Interrupting)) if killed else tile

    ring = TileRing(Source(records, SIZE), limit_bytes=SIZE[0] * SIZE[1] * 3)  # one slot
    ring.write_as(0, 1)
    pixels = ring.tile(3).pixels
    ring.tile(4)
    killed = True
    with pytest.raises(KeyboardInterrupt):
        ring.tile(3)  # its slot is named again, and still has the pixels of image 4
    killed = False
    for _ in range(3):
        assert np.array_equal(ring.tile(3).pixels, pixels)
    assert asked == [3, 4, 3, 3]


def test_two_loaders_at_once_share_a_ram_cache(records: Records) -> None:
    expected = take(DetectionDataset(records, SIZE, policy=FULL, seed=11), 15, batch_size=4, workers=1)
    dataset = DetectionDataset(records, SIZE, policy=FULL, seed=11, tiles=open_cache("ram", records, SIZE))
    options: dict[str, Any] = {"batch_size": 4, "workers": 2, "worker_kind": "processes", "infinite": True}
    with Loader(dataset, **options) as first, Loader(dataset, **options) as second:
        for theirs, ours, other in zip(expected, first, second, strict=False):
            assert np.array_equal(ours.images, theirs.images)
            assert np.array_equal(other.images, theirs.images)


class Faulty(DetectionDataset):
    """Fails at one image with an unexpected error, or kills its process."""

    kills = False
    faulty = 7

    def sample(self, epoch: int, index: int, **options: Any) -> Sample:
        if index == self.faulty and self.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == self.faulty:
            raise ZeroDivisionError("division by zero")
        return super().sample(epoch, index, **options)


def test_a_failure_names_the_sample(records: Records, children: Children) -> None:
    dataset = Faulty(records, SIZE, policy=FULL)
    with Loader(dataset, batch_size=4, workers=2, worker_kind="processes", drop_last=False) as loader:
        with pytest.raises(WorkerError, match=r"'000007.jpg' \(image 7, epoch 0\).*ZeroDivisionError"):
            list(loader)
        failed = loader.position
        kept = []
        for _ in range(8):  # a kept error must not keep shared memory
            with pytest.raises(WorkerError) as caught:
                next(iter(loader))
            kept.append(caught.value)
        assert loader.position == failed
    assert not children()


def test_a_killed_process_is_an_error_that_says_what_to_do(records: Records, children: Children) -> None:
    dataset = Faulty(records, SIZE, policy=FULL)
    dataset.kills = True
    with Loader(dataset, batch_size=4, workers=2, worker_kind="processes", drop_last=False) as loader:
        for _ in range(2):
            with pytest.raises(WorkerError, match="fewer workers"):
                list(loader)
    assert not children()


class Slow(DetectionDataset):
    """Takes its time."""

    def sample(self, epoch: int, index: int, **options: Any) -> Sample:
        time.sleep(0.1)
        return super().sample(epoch, index, **options)


@pytest.mark.parametrize("batches", [1, 2], ids=["a batch is pending", "none is pending"])
def test_closing_after_a_worker_was_killed_does_not_hang(records: Records, children: Children, batches: int) -> None:
    loader = Loader(Slow(records, SIZE, policy=FULL), batch_size=11, workers=2, worker_kind="processes")
    for _ in range(batches):  # of two in an epoch
        next(iter(loader))
    children()[0].kill()
    start = time.monotonic()
    loader.close()
    assert time.monotonic() - start < 30
    assert not children()


def test_batches_before_the_one_that_killed_a_worker_are_not_lost(records: Records, children: Children) -> None:
    dataset = Faulty(records, SIZE, policy=FULL.no_aug())
    order = dataset.order(0).tolist()
    dataset.kills, dataset.faulty = True, order[7]
    with Loader(dataset, batch_size=2, workers=1, worker_kind="processes", prefetch=4) as loader:
        found = next(iter(loader)).image_ids.tolist()
        wait_until_gone(children)
        found += [i for _ in range(2) for i in next(iter(loader)).image_ids.tolist()]
        with pytest.raises(WorkerError, match="was killed"):
            next(iter(loader))
        assert loader.position == (0, 3)
    assert found == order[:6]


def test_a_signal_to_all_leaves_workers_until_the_loader_is_closed(records: Records, children: Children) -> None:
    loader = Loader(
        DetectionDataset(records, SIZE, policy=FULL), batch_size=4, workers=2, worker_kind="processes", infinite=True
    )
    for child in children():
        child.terminate()
    for _, batch in zip(range(10), loader, strict=False):
        assert len(batch) == 4
    start = time.monotonic()
    loader.close()
    assert time.monotonic() - start < 30
    assert not children()


def test_processes_that_cannot_be_started_are_an_error_and_leave_none(
    records: Records, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork, forks = os.fork, []

    def fork_twice() -> int:
        forks.append(None)
        if len(forks) == 3:
            raise BlockingIOError("no more processes")
        return fork()

    monkeypatch.setattr(os, "fork", fork_twice)
    with pytest.raises(WorkerError, match="could not be started"):
        Loader(DetectionDataset(records, SIZE, policy=FULL), batch_size=4, workers=4, worker_kind="processes")
    wait_until_gone(children)


def test_a_bad_image_of_a_batch_that_was_left_is_named(tmp_path: Path) -> None:
    records = generate_scenes(tmp_path, images=12, seed=5, size_hw=(80, 120))
    dataset = DetectionDataset(records, SIZE, policy=FULL.no_aug())
    bad = int(dataset.order(0)[2])
    records.path(bad).write_bytes(b"")
    with Loader(dataset, batch_size=2, workers=1, worker_kind="processes", prefetch=3) as loader:
        next(iter(loader))
    assert sorted(dataset.bad_images) == [bad]


def affinities(children: Children) -> set[frozenset[int]]:
    return {frozenset(os.sched_getaffinity(child.pid)) for child in children()}


def test_they_are_not_kept_to_the_core_that_openmp_gives_the_calling_thread(
    records: Records, children: Children
) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    done = threading.Event()
    bound = threading.Thread(target=lambda: (os.sched_setaffinity(0, cores[1:]), done.wait()))
    bound.start()
    try:
        os.sched_setaffinity(0, cores[:1])
        with Loader(DetectionDataset(records, SIZE, policy=FULL), batch_size=4, workers=2, worker_kind="processes"):
            assert affinities(children) == {frozenset(cores)}
        assert os.sched_getaffinity(0) == set(cores[:1])
    finally:
        done.set()
        bound.join()
        os.sched_setaffinity(0, cores)


def test_bad_images_are_named_in_the_parent_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = generate_scenes(tmp_path, images=12, seed=5, size_hw=(80, 120))
    for index in (2, 9):
        records.path(index).write_bytes(b"")
    dataset = DetectionDataset(records, SIZE, policy=FULL)
    with Loader(dataset, batch_size=3, workers=3, worker_kind="processes") as loader:
        assert [len(batch) for _ in range(3) for batch in loader] == [3] * 12
    assert sorted(dataset.bad_images) == [2, 9]
    assert caplog.text.count("000002.jpg") == 1


def test_nothing_readable_is_a_data_error(tmp_path: Path) -> None:
    records = generate_scenes(tmp_path, images=3, seed=5, size_hw=(80, 120))
    for index in range(3):
        records.path(index).write_bytes(b"")
    dataset = DetectionDataset(records, SIZE, policy=FULL)
    with (
        Loader(dataset, batch_size=2, workers=1, worker_kind="processes") as loader,
        pytest.raises(DataError, match="None of the 3 images"),
    ):
        list(loader)


def test_closing_leaves_no_process_even_in_mid_epoch(records: Records, children: Children) -> None:
    dataset = DetectionDataset(records, SIZE, policy=FULL)
    loader = Loader(dataset, batch_size=4, workers=3, worker_kind="processes", infinite=True)
    next(iter(loader))
    assert len(children()) == 3
    loader.close()
    assert not children()


SCRIPT = """
import sys
from boxwright.data.dataset import DetectionDataset
from boxwright.data.loader import Loader
from boxwright.data.tile_store import memory_store
from boxwright.data.tile import TileRing
from boxwright.data.policy import policy_for
from boxwright.data.synthetic import generate_scenes
dataset = DetectionDataset(generate_scenes(sys.argv[1], images=4, seed=0), (64, 64), policy=policy_for("yolox_s"))
for number, batch in enumerate(Loader(dataset, batch_size=2, workers=2, worker_kind="processes", infinite=True)):
    if number == 3:
        print("ready", flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_they_end_with_the_process_that_they_work_for(tmp_path: Path, how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    assert parent.stderr is not None
    assert parent.stdout.readline() == "ready\n"
    workers = psutil.Process(parent.pid).children()
    assert len(workers) == 2
    if how is signal.SIGINT:
        os.killpg(parent.pid, how)  # as a terminal does
    else:
        parent.send_signal(how)
    errors = parent.stderr.read()
    parent.stderr.close()
    parent.stdout.close()
    assert parent.wait(20) in (-how, 1)
    assert errors.count("Traceback") == (1 if how is signal.SIGINT else 0)  # the parent's own
    wait_until_gone(lambda: [one for one in workers if one.is_running() and one.status() != psutil.STATUS_ZOMBIE])


def test_what_does_not_go_together_is_refused(records: Records) -> None:
    dataset = DetectionDataset(records, SIZE, policy=FULL)
    with pytest.raises(UsageError, match=r"'fibres'.*threads, processes"):
        Loader(dataset, batch_size=2, worker_kind="fibres")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="workers=0"):
        Loader(dataset, batch_size=2, workers=0, worker_kind="processes")
