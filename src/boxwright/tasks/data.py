"""Checking, describing, converting and splitting labelled sets: `boxwright data` as functions. Needs no torch."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.core import catalogue
from boxwright.core.boxes import cxcywh_to_xyxy
from boxwright.core.errors import UsageError
from boxwright.core.files import write_whole
from boxwright.core.types import Detections
from boxwright.data.check import check_data
from boxwright.data.check.report import CheckReport
from boxwright.data.dataset import DetectionDataset
from boxwright.data.formats import Format, ShardFormat, find_layout, read_records, write_records
from boxwright.data.loader import Loader
from boxwright.data.policy import policy_for
from boxwright.data.records import Records
from boxwright.data.split import split_records
from boxwright.data.stats import Stats, compute_stats
from boxwright.detector.sizes import SIZES
from boxwright.tasks.models import normalise_name
from boxwright.tasks.stats_page import make_stats_page
from boxwright.vision.draw import contact_sheet, draw_detections

Progress = Callable[[int, int], None]
PartProgress = Callable[[str, int, int], None]
"""Called with what is being done, the number of images done and of all."""


def check_set(
    data: Path,
    *,
    split: str | None = None,
    format: Format | None = None,
    report: Path | None = None,
    progress: Progress | None = None,
    allow_outside: bool = False,
) -> dict[str, CheckReport]:
    """Return the faults of each part of a set; with `report` also write them to one file per part."""
    reports = check_data(data, split=split, format=format, progress=progress, allow_outside=allow_outside)
    if report is not None:
        for part, found in reports.items():
            found.save(report if len(reports) == 1 else report.with_name(f"{report.stem}.{part}{report.suffix}"))
    return reports


def describe_set(
    data: Path,
    *,
    split: str | None = None,
    format: Format | None = None,
    plot: Path | None = None,
    allow_outside: bool = False,
) -> Stats:
    """Return the statistics of a set; with `plot` also draw them, to an image or an .html page."""
    stats = compute_stats(read_records(data, split=split, format=format, allow_outside=allow_outside))
    if plot is not None and plot.suffix.lower() in (".html", ".htm"):
        write_whole(plot, make_stats_page(stats, str(data)))
    elif plot is not None:
        stats.plot(plot)
    return stats


def convert_set(
    data: Path,
    out: Path,
    *,
    to: Format | ShardFormat,
    format: Format | None = None,
    link: bool = False,
    shard_images: int | None = None,
    allow_outside: bool = False,
    progress: PartProgress | None = None,
) -> dict[str, int]:
    """Write every part of a set in another format and return how many images each part has.

    `shard_images` is how many images go into a shard, for the formats webdataset and parquet; by default 1,000.
    """
    refuse_filled(out)
    layout = find_layout(data, format, allow_outside=allow_outside)
    # Joined lists (trainval) hold the same images again.
    parts = [part for part in ("train", "val", "test") if part in layout.splits]
    sets: dict[str, Records] = {part: layout.read(part) for part in parts} or {"train": layout.read(None)}
    return _write(sets, out, to=to, link=link, shard_images=shard_images, progress=progress)


def split_set(
    data: Path,
    out: Path,
    *,
    val: float,
    seed: int = 0,
    to: Format = "coco",
    format: Format | None = None,
    link: bool = False,
    allow_outside: bool = False,
    progress: PartProgress | None = None,
) -> dict[str, int]:
    """Divide a set in one piece into train and val, by the seed, and return how many images each part has.

    Raises:
        UsageError: the set already has parts.
    """
    refuse_filled(out)
    layout = find_layout(data, format, allow_outside=allow_outside)
    if layout.splits:
        raise UsageError(
            f"{str(data)!r} is split already ({', '.join(layout.splits)}). Use `convert` to write it elsewhere."
        )
    train, held_out = split_records(layout.read(None), val=val, seed=seed)
    return _write({"train": train, "val": held_out}, out, to=to, link=link, progress=progress)


def _write(
    sets: dict[str, Records],
    out: Path,
    *,
    to: Format | ShardFormat,
    link: bool,
    shard_images: int | None = None,
    progress: PartProgress | None,
) -> dict[str, int]:
    return {
        part: write_records(
            records,
            out,
            to,
            split=part,
            images="link" if link else "copy",
            shard_images=shard_images,
            progress=None if progress is None else partial(progress, f"Writing {part}"),
        )
        for part, records in sets.items()
    }


def refuse_filled(out: Path) -> None:
    """Check that a folder is empty or does not exist.

    Raises:
        UsageError: it holds something already.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{str(out)!r} is not empty. Choose a new folder.")


def preview_set(
    data: Path,
    folder: Path,
    *,
    model: str = "yolox_nano",
    split: str | None = None,
    format: Format | None = None,
    size_hw: tuple[int, int] | None = None,
    batch: int = 12,
    batches: int = 1,
    seed: int = 0,
    no_aug: bool = False,
    allow_outside: bool = False,
) -> list[Path]:
    """Draw batches as training with this model's policy sees them, one picture each, and return their paths."""
    refuse_filled(folder)
    model = normalise_name(model)
    catalogue.find("model", model)
    policy = policy_for(model)
    records = read_records(data, split=split, format=format, allow_outside=allow_outside)
    dataset = DetectionDataset(
        records, size_hw or SIZES[model].input_hw, policy=policy.no_aug() if no_aug else policy, seed=seed
    )
    folder.mkdir(parents=True, exist_ok=True)
    pictures: list[Path] = []
    with Loader(dataset, batch_size=batch, infinite=True, drop_last=False) as loader:
        for number, made in zip(range(batches), loader, strict=False):
            path = folder / f"batch_{number}.jpg"
            drawn = [
                draw_sample(image, rows, records.names) for image, rows in zip(made.images, made.targets, strict=True)
            ]
            sheet = contact_sheet(drawn, made.images.shape[1:3])
            path.write_bytes(cv2.imencode(".jpg", sheet)[1].tobytes())
            pictures.append(path)
    return pictures


def draw_sample(image: NDArray[np.uint8], targets: NDArray[np.float32], names: tuple[str, ...]) -> NDArray[np.uint8]:
    """Return the image of a training sample with its boxes."""
    rows = targets[targets[:, 3] > 0]
    boxes = Detections(
        boxes_xyxy=cxcywh_to_xyxy(rows[:, 1:]).astype(np.float32),
        scores=np.ones(len(rows), np.float32),
        class_ids=rows[:, 0].astype(np.int64),
        names=names,
        size_hw=(image.shape[0], image.shape[1]),
    )
    return draw_detections(image, boxes, scores=False)
