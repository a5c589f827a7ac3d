"""The data of a training run: reading, checking, caching, loading."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from boxwright.accel.nano import TorchNano
from boxwright.core.errors import DataError, UsageError, shorten
from boxwright.core.log import get_logger
from boxwright.data.cache import TileCache, choose_stores, open_cache
from boxwright.data.check import CheckReport, FileFacts, check_files, check_headers, make_report, usable
from boxwright.data.check.before import CheckedBefore
from boxwright.data.dataset import DetectionDataset
from boxwright.data.fingerprint import compare, fingerprint, read_lock
from boxwright.data.forks import processes_can_work
from boxwright.data.formats import find_layout
from boxwright.data.loader import Loader
from boxwright.data.policy import AugmentPolicy, policy_for
from boxwright.data.records import Records
from boxwright.data.split import read_splits
from boxwright.data.threads import with_progress
from boxwright.data.tile import FileTiles
from boxwright.data.workers import WorkerKind
from boxwright.tasks.train.config import TrainConfig

_log = get_logger(__name__)
_CORES_FOR_PROCESSES = 4
T = TypeVar("T")
_MOST_BOXES = 120  # of a mosaic, where every batch must have the same shape; the original keeps as many


def read_sets(nano: TorchNano, config: TrainConfig, data: Path) -> tuple[Records, Records]:
    """Return the images to train on and those to score on; the first process parses the labels for all.

    Args:
        nano: the processes of the run.
        config: the run.
        data: where its set is on this machine.

    Raises:
        DataError: the set can't be read, or has no boxes to train on.
    """
    train, held_out, origin = run_in_first(nano, lambda: (*_parse_sets(config, data), data))
    return _relocate(train, origin, data), _relocate(held_out, origin, data)


def _parse_sets(config: TrainConfig, data: Path) -> tuple[Records, Records]:
    if config.train_split is not None:
        layout = find_layout(data, allow_outside=config.allow_outside)
        train = layout.read(config.train_split)
        held_out = layout.read(config.val_split).with_names(train.names)
    else:
        train, held_out = read_splits(data, val=config.val, seed=config.seed, allow_outside=config.allow_outside)
    if not len(train.boxes_xyxy):
        raise DataError(
            f"None of the {len(train)} training images in {str(config.data)!r} has a box: nothing to learn."
        )
    return train, held_out


def _relocate(records: Records, origin: Path, data: Path) -> Records:
    """Return records that were read at `origin`, for the same set at `data` on this machine."""
    if os.path.abspath(origin) == os.path.abspath(data):
        return records
    root = Path(os.path.normpath(data / os.path.relpath(records.root, origin)))
    if not root.is_dir():
        raise DataError(f"There is no data set at {str(data)!r}: the folder {str(root)!r} is missing. Check the path.")
    return replace(records, root=root)


def leave_out_bad(nano: TorchNano, records: Records, held_out: Records, config: TrainConfig) -> Records:
    """Return the training images without the bad ones; the report is in the run folder.

    Each process checks its share of the images. A set that was checked before, by this run or another one, is not
    checked again as long as nothing changed: `data.lock` and `checked_before` say so. `check=off` skips the check.

    Raises:
        DataError: more images are bad than the config allows.
    """
    if config.check == "off":
        return records
    start = time.perf_counter()
    path = config.output_dir / "data_report.json"
    before = CheckedBefore(records, held_out, full=config.check == "full")
    report = run_in_first(nano, lambda: _earlier_report(records, config) or before.load())
    known = report is not None
    if report is None:
        facts = _check_files(nano, records, full=config.check == "full")
        other = held_out if len(held_out) else None
        workers = torch.get_num_threads()
        report = run_in_first(nano, lambda: make_report(records, facts, other=other, workers=workers))
    if nano.is_global_zero:
        report.save(path)
        words = "Unchanged since it was checked" if known else f"Checked in {time.perf_counter() - start:.1f} s"
        _log.info("%s %s.", report.summary(), words)
        before.save(report)
    report = replace(report, root=str(records.root))  # each machine may have the set in another place
    good = usable(records, report, threshold=config.max_error_rate, report_path=path)
    if report.bad_names and nano.is_global_zero:
        _log.warning("Left out: %s. See %s", shorten(report.bad_names, 10), path)
    return good


def run_in_first(nano: TorchNano, work: Callable[[], T], *, answer_every_s: float = 60.0) -> T:
    """Return the result of work that the first process does for all, or raise its error in all.

    The others wait in collectives, which have a time limit. The work may take longer: the first process answers them
    at this interval, which must be well below that limit.
    """
    if not nano.is_distributed:
        return work()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work) if nano.is_global_zero else None
        done, value = False, cast("Any", None)
        while not done:
            if future is not None and wait([future], timeout=answer_every_s).done:
                done, value = True, future.exception() or future.result()
            done, value = nano.broadcast((done, value))
    if isinstance(value, BaseException):
        raise value
    return cast("T", value)


def run_in_all(nano: TorchNano, work: Callable[[], T], *, answer_every_s: float = 60.0) -> list[T]:
    """Return the results of work that each process does, by rank, or raise the first error in all.

    Some may take much longer than others: as in `run_in_first`, all meet at this interval until the last one is done.
    """
    if not nano.is_distributed:
        return [work()]
    with ThreadPoolExecutor(1) as pool:
        future, done = pool.submit(work), False
        while not done:
            done = all(nano.all_gather(bool(wait([future], timeout=answer_every_s).done)))
    results = nano.all_gather(future.exception() or future.result())
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast("list[T]", results)


def _check_files(nano: TorchNano, records: Records, *, full: bool) -> list[FileFacts]:
    """Return the facts about every image file; each process looks at its share."""
    own = range(nano.global_rank, len(records), nano.world_size)
    threads = torch.get_num_threads()  # of this thread: other threads have their own
    check = check_files if full else check_headers

    def work() -> list[FileFacts]:
        return list(with_progress(check(records, own, threads), len(own), "images checked"))

    shares = run_in_all(nano, work)
    return [fact for row in zip_longest(*shares) for fact in row if fact is not None]


def _earlier_report(records: Records, config: TrainConfig) -> CheckReport | None:
    """Return the report of a resumed run, None if there is none or the data changed since."""
    lock = config.output_dir / "data.lock"
    if not config.resume or not lock.exists():
        return None
    try:
        report = CheckReport.load(config.output_dir / "data_report.json")
        good = usable(records, report, threshold=1)
        return None if compare(read_lock(lock), fingerprint(good)) else report
    except (DataError, UsageError):
        return None


def choose_policy(config: TrainConfig, *, multiscale: bool, most_sizes: int | None = None) -> AugmentPolicy:
    """Return how images are changed, as the model's policy and the config say, in at most `most_sizes` sizes."""
    policy = policy_for(config.model) if config.mosaic else policy_for(config.model).no_aug()
    if not config.augment:
        policy = replace(policy.no_aug(), hsv_prob=0.0, flip_prob=0.0, multiscale=None)
    policy = policy if multiscale else replace(policy, multiscale=None)
    return policy if most_sizes is None else policy.with_fewer_sizes(most_sizes)


def make_dataset(
    nano: TorchNano, records: Records, size_hw: tuple[int, int], policy: AugmentPolicy, config: TrainConfig
) -> DetectionDataset:
    """Return the training samples over the cache that the config names."""
    stores = None
    if config.cache == "auto":
        stores = run_in_first(nano, lambda: choose_stores(FileTiles(records, size_hw)))
    opened: list[TileCache] = []

    def open_own() -> dict[str, tuple[str, str]]:
        opened.append(open_cache(config.cache, records, size_hw, stores=stores))
        return opened[0].addresses

    addresses = run_in_all(nano, open_own)
    (tiles,) = opened
    tiles.join(addresses)
    return DetectionDataset(records, size_hw, policy=policy, seed=config.seed, tiles=tiles)


def make_loader(
    nano: TorchNano, dataset: DetectionDataset, batch: int, config: TrainConfig, start: tuple[int, int]
) -> Loader:
    """Return this process's endless batches from a position on."""
    kind, workers = choose_workers(nano, config)
    return Loader(
        dataset,
        batch_size=batch,
        rank=nano.global_rank,
        world_size=nano.world_size,
        workers=workers,
        worker_kind=kind,
        prefetch=3,
        infinite=True,
        start=start,
        max_boxes=_MOST_BOXES if nano.hardware.static_shapes else None,
    )


def choose_workers(nano: TorchNano, config: TrainConfig) -> tuple[WorkerKind, int]:
    """Return the kind and number of workers that make the samples of this process.

    A GPU or Gaudi must get its next operations in time. Threads would take Python's lock from the one that feeds it, so
    processes make the samples, on nearly all cores. On a CPU, where the cores compute, threads do.
    """
    cores = torch.get_num_threads()
    kind = config.worker_kind
    if kind == "auto":
        by_processes = nano.hardware.asynchronous and cores >= _CORES_FOR_PROCESSES and processes_can_work()
        kind = "processes" if by_processes else "threads"
    if config.workers:
        return kind, config.workers
    return kind, max(1, min(cores - 2, 16) if kind == "processes" else min(cores // 2, 12))
