"""COCO, one json per split: `CocoLayout`, `read_coco` and `write_coco`."""

import json
import logging
import mmap
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core.boxes import area_xyxy, xywh_to_xyxy
from boxwright.core.errors import DataError, shorten
from boxwright.core.files import is_inside, read_bytes
from boxwright.data.formats.base import SPLIT_FOLDERS, Fault, home_of, outside, record, require_split, split_of
from boxwright.data.formats.files import CopyMode, copy_images, exported_names, find_images, is_strange, write_text
from boxwright.data.records import Records, pack_paths
from boxwright.vision.decode import list_images

_log = logging.getLogger(__name__)

_KEYS = ("images", "annotations", "categories")
_MOST_SHOWN = 80


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
    listed, annotations, categories = _load(file)
    where = f"{str(file)!r}:"
    class_of = _index_categories(categories, where)
    index: dict[Any, int] = {}
    images: list[dict[str, Any]] = []
    for image in listed:
        image_id, name = image.get("id"), image.get("file_name")
        if not _is_id(image_id):
            problem = f"the image id {image_id!r} is not an integer"
        elif not name:
            problem = f"image {image_id} has no 'file_name'"
        elif image_id in index:
            problem = f"several images have the id {image_id}"
        else:
            index[image_id] = len(images)
            images.append(image)
            continue
        record(faults, "bad-label", name or file, f"{where} {problem}.")
    if not images:
        raise DataError(f"{where} none of its {len(listed)} images has an id and a file_name.")
    file_names = [_file_name(image["file_name"]) for image in images]
    root, exists = find_images(file, file_names, home)
    strays = set()
    if home is not None:
        strays = {n for n in file_names if is_strange(n) and not is_inside(root / n, root, home)}
        for name in file_names if strays else ():
            if name in strays:
                record(faults, "outside-folder", name, outside(file, name, home))

    owners = _look_up(annotations, "image_id", index)
    classes = _look_up(annotations, "category_id", class_of)
    boxes_xywh = _numbers([a.get("bbox") for a in annotations], (4,))
    boxes_xyxy = xywh_to_xyxy(boxes_xywh).astype(np.float32)
    # Without an area in the file, that of the box.
    given = (a.get("area") for a in annotations)
    own = area_xyxy(boxes_xyxy)
    areas = _numbers([o if g is None else g for g, o in zip(given, own.tolist(), strict=True)], ())
    crowd = _numbers([a.get("iscrowd") or 0 for a in annotations], ())
    usable = (owners >= 0) & (classes >= 0) & np.isfinite(areas) & np.isfinite(boxes_xywh).all(axis=1)
    usable &= (crowd == 0) | (crowd == 1)
    for n in np.flatnonzero(~usable).tolist():
        rule, problem = _problem(annotations[n], owners[n] >= 0, classes[n] >= 0, boxes_xywh[n], areas[n])
        path = root / file_names[owners[n]] if owners[n] >= 0 else file
        record(faults, rule, path, f"{where} annotation {annotations[n].get('id')!r} {problem}.")
    for n in np.flatnonzero(usable & (areas < 0)).tolist():
        if faults is not None:
            message = f"{where} annotation {annotations[n].get('id')!r} has the area {areas[n]:g}; its box is used."
            record(faults, "negative-area", root / file_names[owners[n]], message)
    areas = np.where(areas < 0, own, areas)

    sizes_hw = np.zeros((len(images), 2), np.int32)
    for n, image in enumerate(images):
        size = image.get("height") or 0, image.get("width") or 0
        try:
            sizes_hw[n] = size
        except (ValueError, TypeError, OverflowError):
            message = f"{where} height and width of {file_names[n]!r} are {size!r} where whole numbers should be."
            record(faults, "bad-label", root / file_names[n], message)
    chosen = np.flatnonzero(usable)
    chosen = chosen[np.argsort(owners[chosen], kind="stable")]
    path_bytes, path_offsets = pack_paths(file_names)
    records = Records(
        root=root,
        path_bytes=path_bytes,
        path_offsets=path_offsets,
        image_ids=np.array(list(index), np.int64),
        sizes_hw=sizes_hw,
        boxes_xyxy=boxes_xyxy[chosen],
        class_ids=classes[chosen].astype(np.int32),
        crowd=crowd[chosen] == 1,
        areas=areas[chosen].astype(np.float32),
        offsets=np.searchsorted(owners[chosen], np.arange(len(images) + 1)),
        names=tuple(str(c["name"]) for c in sorted(categories, key=lambda c: class_of[c["id"]])),
        category_ids=tuple(class_of),
        missing=tuple(n for n, there in zip(file_names, exists, strict=True) if not there and n not in strays),
    )
    if records.missing:
        _log.warning(
            "%d of the %d images of %r are not in %r and are left out: %s.",
            len(records.missing), len(images), str(file), str(root), shorten(records.missing),
        )  # fmt: skip
    return records if exists.all() else records.select(exists)


def write_coco_folder(records: Records, folder: Path, split: str, images: CopyMode) -> None:
    """Write a set as `annotations/instances_<split>.json` and `images/<split>/`."""
    root, names = folder / "images" / split, exported_names(records)
    copy_images(records, names, root, images)
    path_bytes, path_offsets = pack_paths(names)
    moved = replace(records, root=root, path_bytes=path_bytes, path_offsets=path_offsets)
    write_coco(moved, folder / "annotations" / f"instances_{split}.json")


def write_coco(records: Records, file: Path) -> None:
    """Write a set as a COCO json that `read_coco` reads back as the same set, from one of its `image_roots`.

    Image and category ids are kept; annotations are counted from 1.
    """
    images = []
    for i, image_id in enumerate(records.image_ids.tolist()):
        height, width = records.size_hw(i)
        image = {"id": image_id, "file_name": records.relative_path(i)}
        images.append(image | {"height": height, "width": width} if height else image)
    columns = {
        "image_id": np.repeat(records.image_ids, np.diff(records.offsets)).tolist(),
        "category_id": np.array(records.category_ids, np.int64)[records.class_ids].tolist(),
        "bbox": _shortest_xywh(records.boxes_xyxy).tolist(),
        "area": _shortest(records.areas).tolist(),
        "iscrowd": records.crowd.astype(int).tolist(),
    }
    content = {
        "images": images,
        "annotations": [
            {"id": number} | dict(zip(columns, row, strict=True))
            for number, row in enumerate(zip(*columns.values(), strict=True), start=1)
        ],
        "categories": [{"id": i, "name": name} for i, name in zip(records.category_ids, records.names, strict=True)],
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    # Python's json reads file names that are not valid UTF-8 back in this encoding.
    write_text(file, text.encode("utf-8", "surrogatepass"))


def _looks_like_coco(file: Path) -> bool:
    """Return whether a json file has the lists that COCO annotations have."""
    # Searched, not parsed: the official annotations folder holds 1.5 GB of json.
    try:
        with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return all(re.search(rb'"%s"\s*:\s*\[' % key.encode(), data) for key in _KEYS)
    except (OSError, ValueError):  # ValueError: the file is empty
        return False


def _load(file: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the images, annotations and categories of a json."""
    try:
        content = json.loads(read_bytes(file))
    except OSError as error:
        raise DataError(f"Cannot read {str(file)!r}: {error.strerror}. Check the path.") from error
    except (ValueError, RecursionError) as error:  # a JSONDecodeError names line and column
        raise DataError(f"{str(file)!r} is not valid json: {error}. Export or copy it again.") from error
    parts: list[Any] = [content.get(key) if isinstance(content, dict) else None for key in _KEYS]
    for key, part in zip(_KEYS, parts, strict=True):
        if not isinstance(part, list) or not all(isinstance(entry, dict) for entry in part):
            raise DataError(f"{str(file)!r} is not a COCO json: it has no list of {key!r}. Use an instances json.")
    images, annotations, categories = parts
    if not images or not categories:
        what = "categories: boxes need classes" if images else "images: an empty set can't be used"
        raise DataError(f"{str(file)!r} lists no {what}.")
    return images, annotations, categories


def _index_categories(categories: Sequence[Mapping[str, Any]], where: str) -> dict[int, int]:
    """Return the class id of each category id, in their order."""
    for category in categories:
        if not _is_id(category.get("id")):
            raise DataError(f"{where} the category id {category.get('id')!r} is not an integer. Number them 1, 2, 3 …")
        if category.get("name") is None:
            raise DataError(f"{where} category {category['id']} has no 'name'. Correct it or take it out.")
    ids = sorted(category["id"] for category in categories)
    class_of = {category_id: n for n, category_id in enumerate(ids)}
    if len(class_of) < len(ids):
        twice = next(i for n, i in enumerate(ids) if class_of[i] != n)
        raise DataError(f"{where} several categories have the id {twice}. Give each its own.")
    return class_of


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _look_up(annotations: Sequence[Mapping[str, Any]], key: str, index: Mapping[Any, int]) -> NDArray[np.int64]:
    """Return the place that each annotation's id has in an index, -1 where it has none."""
    # Not every value can be looked up: there may be a list where an id should be.
    ids = (a.get(key) for a in annotations)
    return np.array([index.get(i, -1) if isinstance(i, int | float) else -1 for i in ids], np.int64)


def _numbers(values: Sequence[Any], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the numbers of each value, NaN for a value that does not consist of so many finite numbers."""
    if not values:
        return np.zeros((0, *shape))
    try:
        array = np.array(values, np.float64)
    except (ValueError, TypeError, OverflowError):
        array = np.zeros(())
    if array.shape == (len(values), *shape):
        # The bound leaves room for sums and areas in float32.
        return np.where(np.abs(array) < 1e12, array, np.nan)
    if len(values) == 1:
        return np.full((1, *shape), np.nan)
    return np.concatenate([_numbers([value], shape) for value in values])


def _file_name(value: Any) -> str:
    # The system would follow a link before it goes up; the check of what is inside goes by the names alone.
    name = str(value)
    return os.path.normpath(name) if os.pardir in name else name


def _problem(
    annotation: Mapping[str, Any], has_image: bool, has_class: bool, box: NDArray[np.float64], area: float
) -> tuple[str, str]:
    """Return rule and words for what is wrong with an annotation."""
    if not has_image:
        return "bad-label", f"belongs to image {annotation.get('image_id')!r}, which the file does not have"
    if not has_class:
        return "unknown-class", f"belongs to category {annotation.get('category_id')!r}, which the file does not have"
    if not np.isfinite(box).all():
        return "bad-label", f"has bbox {_show(annotation.get('bbox'))} where 4 finite numbers should be"
    if not np.isfinite(area) and annotation.get("area") is None:
        return "bad-label", f"has bbox {_show(annotation.get('bbox'))}, which is too large"
    if not np.isfinite(area):
        return "bad-label", f"has area {_show(annotation.get('area'))} where a finite number should be"
    return "bad-label", f"has iscrowd {_show(annotation.get('iscrowd'))} where 0 or 1 should be"


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _shortest(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the shortest decimals that still mean the same float32: 0.1, not 0.10000000149."""
    return values.astype("U32").astype(np.float64)


def _shortest_xywh(boxes_xyxy: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return corner and size in short decimals that give the same float32 corners again."""
    low, high = _shortest(boxes_xyxy[:, :2]), _shortest(boxes_xyxy[:, 2:])
    size = np.round(high - low, 6)
    same = (low + size).astype(np.float32) == boxes_xyxy[:, 2:]
    return np.concatenate((low, np.where(same, size, high - low)), axis=1)
