"""Sets in shards: `write_shards`."""

import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from boxwright.core.boxes import xyxy_to_xywh
from boxwright.core.errors import DataError
from boxwright.core.files import whole_file
from boxwright.core.packages import require
from boxwright.data.formats.coco import write_coco
from boxwright.data.formats.files import Progress, exported_names
from boxwright.data.records import Records, pack_paths
from boxwright.data.shards import add_member, read_encoded
from boxwright.vision.image_header import parse_header

ShardFormat = Literal["webdataset", "parquet"]

IMAGES_PER_SHARD = 1000

_SUFFIXES = {"webdataset": ".tar", "parquet": ".parquet"}
_ROWS = 64  # of a row group: as many images are in memory at once


class _Sample(NamedTuple):
    """An image on its way into a shard: its key, its name in the set, its bytes, and what the labels say."""

    key: str
    name: str
    data: bytes
    image_id: int
    size_hw: tuple[int, int]
    boxes_xyxy: list[list[float]]
    areas: list[float]
    crowd: list[bool]
    category_ids: list[int]
    classes: list[str]


def write_shards(
    records: Records,
    folder: Path,
    split: str,
    format: ShardFormat,
    *,
    shard_images: int = IMAGES_PER_SHARD,
    progress: Progress | None = None,
) -> None:
    """Write a set as `annotations/instances_<split>.json` and shards in `images/<split>/`.

    A shard is a tar file with an image and a json for each sample, as WebDataset reads it, or a parquet file with a row
    for each. The json of the set, which is written last, has all labels, so that training reads them before any shard.

    Raises:
        DataError: an image can't be read, or a file can't be written.
        MissingDependencyError: pyarrow is not installed, for parquet.
    """
    if format == "parquet":
        require("pyarrow", extra="batch", by="Writing parquet")
    write = _write_tar if format == "webdataset" else _write_parquet
    root, names, count = folder / "images" / split, exported_names(records), len(records)
    sizes_hw, paths = np.array(records.sizes_hw), []
    for number, start in enumerate(range(0, count, shard_images)):
        file = root / f"{number:06d}{_SUFFIXES[format]}"

        def samples(file: Path = file, start: int = start) -> Iterator[_Sample]:
            for i in range(start, min(start + shard_images, count)):
                sample = _read_sample(records, i, names[i])
                sizes_hw[i] = sample.size_hw
                paths.append(f"{file.name}/{sample.key}")
                yield sample
                if progress is not None:
                    progress(i + 1, count)

        try:
            with whole_file(file) as draft:
                write(draft, samples())
        except OSError as error:
            raise DataError(f"Cannot write {str(file)!r}: {error.strerror or error}. Choose another place.") from error
    path_bytes, path_offsets = pack_paths(paths)
    moved = replace(records, root=root, path_bytes=path_bytes, path_offsets=path_offsets, sizes_hw=sizes_hw)
    write_coco(moved, folder / "annotations" / f"instances_{split}.json")


def _read_sample(records: Records, i: int, name: str) -> _Sample:
    data = read_encoded(records.path(i))
    height, width = records.size_hw(i)
    if not height and (header := parse_header(data)) is not None:
        height, width = header.size_hw
    classes = records.class_ids_of(i).tolist()
    return _Sample(
        # No name of the set: WebDataset takes all after the first dot for the kind of file.
        key=f"{i:09d}{os.path.splitext(name)[1].lower()}",
        name=name,
        data=data,
        image_id=int(records.image_ids[i]),
        size_hw=(height, width),
        boxes_xyxy=records.boxes(i).tolist(),
        areas=records.areas_of(i).tolist(),
        crowd=records.crowd_of(i).tolist(),
        category_ids=[records.category_ids[c] for c in classes],
        classes=[records.names[c] for c in classes],
    )


def _write_tar(draft: Path, samples: Iterator[_Sample]) -> None:
    with tarfile.open(draft, "w", format=tarfile.USTAR_FORMAT) as tar:
        for sample in samples:
            add_member(tar, sample.key, sample.data)
            add_member(tar, f"{os.path.splitext(sample.key)[0]}.json", json.dumps(_labels(sample)).encode())


def _labels(sample: _Sample) -> dict[str, Any]:
    boxes_xywh = xyxy_to_xywh(np.array(sample.boxes_xyxy, np.float64).reshape(-1, 4)).tolist()
    keys = ("bbox", "area", "iscrowd", "category_id", "category")
    columns = (boxes_xywh, sample.areas, map(int, sample.crowd), sample.category_ids, sample.classes)
    return {
        "image_id": sample.image_id,
        "file_name": sample.name,
        "height": sample.size_hw[0],
        "width": sample.size_hw[1],
        "annotations": [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)],
    }


def _write_parquet(draft: Path, samples: Iterator[_Sample]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers, words = pa.list_(pa.float32()), pa.list_(pa.string())
    schema = pa.schema(
        {
            "key": pa.string(), "path": pa.string(), "image": pa.binary(), "image_id": pa.int64(),
            "height": pa.int32(), "width": pa.int32(), "boxes_xyxy": pa.list_(numbers), "areas": numbers,
            "crowd": pa.list_(pa.bool_()), "category_ids": pa.list_(pa.int64()), "names": words,
        }
    )  # fmt: skip
    # Images are compressed already.
    with pq.ParquetWriter(draft, schema, compression="none") as writer:
        rows: list[dict[str, Any]] = []

        def flush(rows: Sequence[dict[str, Any]]) -> None:
            writer.write_table(pa.Table.from_pylist(list(rows), schema=schema))

        for sample in samples:
            height, width = sample.size_hw
            rows.append(
                {
                    "key": sample.key, "path": sample.name, "image": sample.data, "image_id": sample.image_id,
                    "height": height, "width": width, "boxes_xyxy": sample.boxes_xyxy, "areas": sample.areas,
                    "crowd": sample.crowd, "category_ids": sample.category_ids, "names": sample.classes,
                }
            )  # fmt: skip
            if len(rows) == _ROWS:
                flush(rows)
                rows.clear()
        if rows:
            flush(rows)
