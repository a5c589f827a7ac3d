"""The data of a training run: read, checked, cached, dealt out."""

import time
from dataclasses import replace
from pathlib import Path

import torch

from boxwright.accel.nano import TorchNano
from boxwright.core.errors import DataError
from boxwright.core.log import get_logger
from boxwright.core.memory import read_memory
from boxwright.data.cache import CacheKind, open_cache
from boxwright.data.check import check_records, usable
from boxwright.data.dataset import DetectionDataset
from boxwright.data.forks import processes_can_work
from boxwright.data.formats import read_records, with_names
from boxwright.data.loader import Loader
from boxwright.data.policy import AugmentPolicy, policy_for
from boxwright.data.records import Records
from boxwright.data.split import read_splits
from boxwright.data.tile import tile_bytes
from boxwright.data.workers import WorkerKind
from boxwright.tasks.train.config import TrainConfig

_log = get_logger(__name__)
_CORES_FOR_PROCESSES = 4
_MOST_BOXES = 120  # of a mosaic, where every batch must have the same shape; the original keeps as many


def read_sets(config: TrainConfig, data: Path) -> tuple[Records, Records]:
    """Return the images to learn from and those to be scored on.

    Args:
        config: the run.
        data: where its set is on this machine.

    Raises:
        DataError: the set can't be read, or has nothing to learn from.
    """
    if config.train_split is not None:
        train = read_records(data, split=config.train_split)
        held_out = with_names(read_records(data, split=config.val_split), train.names)
    else:
        train, held_out = read_splits(data, val=config.val, seed=config.seed)
    if not len(train.boxes_xyxy):
        raise DataError(
            f"None of the {len(train)} training images in {str(config.data)!r} has a box: nothing to learn."
        )
    return train, held_out


def leave_out_bad(nano: TorchNano, records: Records, held_out: Records, config: TrainConfig) -> Records:
    """Return the training images without the bad ones; the first process checks, and the report is in the run folder.

    Raises:
        DataError: more of them are bad than the config allows.
    """
    error: DataError | None = None
    bad: list[int] = []
    if nano.is_global_zero:
        start = time.perf_counter()
        report = check_records(records, other=held_out if len(held_out) else None)
        path = config.output_dir / "data_report.json"
        report.save(path)
        _log.info("%s Checked in %.1f s.", report.summary(), time.perf_counter() - start)
        try:
            _, names = usable(records, report, threshold=config.max_error_rate, report_path=path)
            bad = [int(i) for i in report.bad_images()]
            if names:
                _log.warning("Left out: %s. See %s", ", ".join(names[:10]) + (" …" if len(names) > 10 else ""), path)
        except DataError as caught:
            error = caught
    error, bad = nano.broadcast((error, bad))
    if error is not None:
        raise error
    keep = sorted(set(range(len(records))) - set(bad))
    return records.select(keep) if bad else records


def choose_policy(config: TrainConfig, *, multiscale: bool, most_sizes: int | None = None) -> AugmentPolicy:
    """Return how images are changed, as the model's policy and the config say, in at most so many sizes."""
    policy = policy_for(config.model) if config.mosaic else policy_for(config.model).no_aug()
    if not config.augment:
        policy = replace(policy.no_aug(), hsv_prob=0.0, flip_prob=0.0, multiscale=None)
    policy = policy if multiscale else replace(policy, multiscale=None)
    return policy if most_sizes is None else policy.with_fewer_sizes(most_sizes)


def make_dataset(
    nano: TorchNano, records: Records, size_hw: tuple[int, int], policy: AugmentPolicy, config: TrainConfig
) -> DetectionDataset:
    """Return the training samples over the cache that the config names."""
    kind, limit_bytes = config.cache, None
    by_processes = choose_workers(nano, config)[0] == "processes"
    if kind == "auto":
        limit_bytes = int(read_memory().usable_bytes // max(nano.world_size, 1) * 0.4)
        # Processes have nothing in common but this, so a part of the set is better than nothing.
        kind = "ram" if by_processes or tile_bytes(records, size_hw).sum() < limit_bytes else "none"
    folder: Path | None = config.output_dir / "cache" if kind == "disk" else None
    chosen: CacheKind = kind
    tiles = open_cache(
        chosen,
        records,
        size_hw,
        folder=folder,
        processes=nano.world_size,
        limit_bytes=limit_bytes if kind == "ram" else None,
    )
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
    """Return who makes the samples of this process, and how many.

    A device that works by itself wants its next operations in time. Threads would take Python's lock from the one that
    gives it them, so processes make the samples, on nearly all cores. On a CPU the cores compute, and threads do.
    """
    cores = torch.get_num_threads()
    kind = config.worker_kind
    if kind == "auto":
        by_processes = nano.hardware.asynchronous and cores >= _CORES_FOR_PROCESSES and processes_can_work()
        kind = "processes" if by_processes else "threads"
    if config.workers:
        return kind, config.workers
    return kind, max(1, min(cores - 2, 16) if kind == "processes" else min(cores // 2, 12))
