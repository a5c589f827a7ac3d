"""COCO, one json per split: `CocoLayout`, `read_coco` and `write_coco`."""

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError, shorten
from boxwright.core.files import is_inside
from boxwright.data.formats.base import SPLIT_FOLDERS, Fault, home_of, outside, record, require_split, split_of
from boxwright.data.formats.coco_labels import KEYS, NEGATIVE, CocoLabels, read_labels
from boxwright.data.formats.files import (
    CopyMode,
    Progress,
    copy_images,
    exported_names,
    find_images,
    is_strange,
    write_pieces,
)
from boxwright.data.label_cache import cached_file
from boxwright.data.records import Records, pack_paths, unpack_paths
from boxwright.vision.decode import list_images

_log = logging.getLogger(__name__)

_BLOCK = 1 << 20
_WRITTEN = 4096  # images whose entries are written at once
_LONGEST_KEY = 64  # bytes of a key, its colon and bracket, with the space between them


@dataclass(frozen=True, slots=True, kw_only=True)
class CocoLayout:
    """The json files of a set by split; "" holds those that are not named after one."""

    place: Path
    files: dict[str, tuple[Path, ...]]
    allow_outside: bool = False

    @classmethod
    def find(cls, place: Path, allow_outside: bool = False) -> "CocoLayout | None":
        """Return the COCO json files of a folder, its `annotations/` and its split folders; None without any.

        If some are called `instances...`, others (key points, captions) don't count.
        """
        if place.is_file():
            if place.suffix.lower() != ".json":
                return None
            return cls(place=place, files={"": (place,)}, allow_outside=allow_outside)
        files = json_files(place)
        named = [file for file in files if file.name.startswith("instances") and _looks_like_coco(file)]
        by_split: dict[str, tuple[Path, ...]] = {}
        for file in named or [file for file in files if _looks_like_coco(file)]:
            split = split_of(file.stem) or (split_of(file.parent.name) if file.parent != place else None) or ""
            by_split[split] = (*by_split.get(split, ()), file)
        return cls(place=place, files=by_split, allow_outside=allow_outside) if by_split else None

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits with one json each."""
        return tuple(name for name, files in self.files.items() if name and len(files) == 1)

    @property
    def every(self) -> tuple[Path, ...]:
        """All json files."""
        return tuple(file for files in self.files.values() for file in files)

    @property
    def evidence(self) -> Path:
        """The first json."""
        return self.every[0]

    def read(self, split: str | None, names: Sequence[str] | None = None, faults: list[Fault] | None = None) -> Records:
        """Return the images and boxes of a split's json, or of the only json.

        With `faults`, images beside the others that the json does not name are faults too, unless a second json may
        name them.
        """
        files = self.every if split is None else self.files[require_split(split, self.files, self.place)]
        if len(files) > 1:
            shown = shorten([str(file.relative_to(self.place)) for file in files])
            hint = f", or a split ({', '.join(self.splits)})" if split is None and self.splits else ""
            raise DataError(
                f"There are {len(files)} COCO json files in {str(self.place)!r}: {shown}. Name the one to read{hint}."
            )
        records = read_coco(files[0], faults, home=None if self.allow_outside else home_of(self.place))
        if faults is not None and self._is_alone():
            listed = {os.path.abspath(records.path(i)) for i in range(len(records))}
            for image in list_images(records.root, recursive=True):
                if os.path.abspath(image) not in listed:
                    message = f"The image {str(image)!r} is not in {str(files[0])!r} and is left out."
                    record(faults, "unlabelled-image", image, message)
        return records if names is None else records.with_names(names)

    def _is_alone(self) -> bool:
        """Return whether no other json may name images of this set."""
        around: CocoLayout | None = self
        if self.place.is_file():
            folder = self.place.parent
            around = CocoLayout.find(folder.parent if folder.name == "annotations" else folder)
        return around is None or len(around.every) <= 1


def json_files(place: Path) -> list[Path]:
    """Return every json file at the usual places of a COCO json."""
    folders = (place / inner for inner in ("", "annotations", *SPLIT_FOLDERS))
    return sorted(file for folder in folders for file in folder.glob("*.json") if file.is_file())


def read_coco(file: Path, faults: list[Fault] | None = None, *, home: Path | None = None) -> Records:
    """Return the images and boxes of a COCO json.

    Images are looked for beside the json and one folder up, there also in `images/` and in a folder named as the json
    (`val2017/` for `instances_val2017.json`). Those that are not found are left out, logged, and named in
    `Records.missing`. Classes are in the order of their category ids, so that two files of one set agree.

    Args:
        file: the json.
        faults: collects the images and annotations that are wrong and left out. Without it the first one is raised.
        home: the folder of the set. Images are looked for only there, and one that the json names outside of it is
            wrong. None allows all.

    Raises:
        DataError: the file is malformed, none of its images exists, or an entry is wrong.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> text = '''{"images": [{"id": 7, "file_name": "a.jpg", "height": 40, "width": 60}],
        ...   "annotations": [{"id": 1, "image_id": 7, "category_id": 3, "bbox": [1, 2, 10, 20]}],
        ...   "categories": [{"id": 3, "name": "cat"}]}'''
        >>> with TemporaryDirectory() as folder:
        ...     Path(folder, "a.jpg").touch()
        ...     _ = Path(folder, "instances.json").write_text(text)
        ...     records = read_coco(Path(folder, "instances.json"))
        >>> records.names, records.boxes(0).tolist()
        (('cat',), [[1.0, 2.0, 11.0, 22.0]])
    """
    labels = _cached_labels(file)
    for flaw in labels.images:
        record(faults, flaw.rule, flaw.name or file, flaw.message)
    if not len(labels.records):
        raise DataError(f"{str(file)!r}: none of its {len(labels.images)} images has an id and a file_name.")
    names = unpack_paths(labels.records)
    root, exists = find_images(file, names, home)
    strays = set()
    if home is not None:
        strays = {n for n in names if is_strange(n) and not is_inside(root / n, root, home)}
        for name in names if strays else ():
            if name in strays:
                record(faults, "outside-folder", name, outside(file, name, home))
    for flaw in labels.labels:
        if faults is not None or flaw.rule != NEGATIVE:
            path = file if flaw.image is None else root / names[flaw.image]
            record(faults, flaw.rule, path, flaw.message)
    gone = [names[n] for n in np.flatnonzero(~exists).tolist()]
    records = replace(labels.records, root=root, missing=tuple(name for name in gone if name not in strays))
    if records.missing:
        _log.warning(
            "%d of the %d images of %r are not in %r and are left out: %s.",
            len(records.missing), len(names), str(file), str(root), shorten(records.missing),
        )  # fmt: skip
    return records if exists.all() else records.select(exists)


def _cached_labels(file: Path) -> CocoLabels:
    """Return the labels in a json; those of a large one in which nothing is wrong are parsed once."""
    read: list[CocoLabels] = []

    def make() -> Records | None:
        read.append(read_labels(file))
        return read[0].records if read[0].is_clean else None

    found = cached_file(file, make)
    return read[0] if found is None else CocoLabels(records=found)


def write_coco_folder(
    records: Records, folder: Path, split: str, images: CopyMode, progress: Progress | None = None
) -> None:
    """Write a set as `annotations/instances_<split>.json` and `images/<split>/`."""
    root, names = folder / "images" / split, exported_names(records)
    copy_images(records, names, root, images, progress)
    path_bytes, path_offsets = pack_paths(names)
    moved = replace(records, root=root, path_bytes=path_bytes, path_offsets=path_offsets)
    write_coco(moved, folder / "annotations" / f"instances_{split}.json")


def write_coco(records: Records, file: Path) -> None:
    """Write a set as a COCO json that `read_coco` reads back as the same set, from one of its `image_roots`.

    Image and category ids are kept; annotations are counted from 1.
    """
    # Python's json reads file names that are not valid UTF-8 back in this encoding.
    write_pieces(file, (piece.encode("utf-8", "surrogatepass") for piece in _format_coco(records)))


def _format_coco(records: Records) -> Iterator[str]:
    """Yield the text of a json in pieces: all annotations as objects would take a hundred times their packed size."""
    names, count = unpack_paths(records), len(records)
    yield '{"images":['
    for start in range(0, count, _WRITTEN):
        images = []
        for i in range(start, min(start + _WRITTEN, count)):
            height, width = records.size_hw(i)
            image = {"id": int(records.image_ids[i]), "file_name": names[i]}
            images.append(image | {"height": height, "width": width} if height else image)
        yield _format_list(images, start)
    yield '],"annotations":['
    for start in range(0, count, _WRITTEN):
        end = min(start + _WRITTEN, count)
        first, last = int(records.offsets[start]), int(records.offsets[end])
        owners = np.repeat(records.image_ids[start:end], np.diff(records.offsets[start : end + 1]))
        columns = {
            "id": range(first + 1, last + 1),
            "image_id": owners.tolist(),
            "category_id": np.array(records.category_ids, np.int64)[records.class_ids[first:last]].tolist(),
            "bbox": _shortest_xywh(records.boxes_xyxy[first:last]).tolist(),
            "area": _shortest(records.areas[first:last]).tolist(),
            "iscrowd": records.crowd[first:last].astype(int).tolist(),
        }
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        yield _format_list(rows, first)
    categories = [{"id": i, "name": name} for i, name in zip(records.category_ids, records.names, strict=True)]
    yield f'],"categories":[{_format_list(categories, 0)}]}}'


def _format_list(entries: Sequence[Mapping[str, Any]], before: int) -> str:
    """Return entries of a json list without its brackets; there were so many before them."""
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":"))[1:-1]
    return f",{text}" if text and before else text


def _looks_like_coco(file: Path) -> bool:
    """Return whether a json file has the lists that COCO annotations have."""
    # Searched, not parsed: the official annotations folder holds 1.5 GB of json. The last list often is at the end.
    wanted = [re.compile(rb'"%s"\s*:\s*\[' % key.encode()) for key in KEYS]
    try:
        with file.open("rb") as handle:
            size = handle.seek(0, os.SEEK_END)
            for start in (max(size - _BLOCK, 0), *range(0, size, _BLOCK)):
                handle.seek(start)
                block = handle.read(_BLOCK + _LONGEST_KEY)
                wanted = [key for key in wanted if not key.search(block)]
                if not wanted:
                    return True
    except OSError:
        pass
    return False


def _shortest(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the shortest decimals that still mean the same float32: 0.1, not 0.10000000149."""
    return values.astype("U32").astype(np.float64)


def _shortest_xywh(boxes_xyxy: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return corner and size in short decimals that give the same float32 corners again."""
    low, high = _shortest(boxes_xyxy[:, :2]), _shortest(boxes_xyxy[:, 2:])
    size = np.round(high - low, 6)
    same = (low + size).astype(np.float32) == boxes_xyxy[:, 2:]
    return np.concatenate((low, np.where(same, size, high - low)), axis=1)
