"""COCO json: `read_coco` and `write_coco`."""

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core.boxes import area_xyxy, xywh_to_xyxy
from boxwright.core.errors import DataError
from boxwright.data.formats.coco_folder import looks_like_coco
from boxwright.data.formats.image_folder import find_images, image_roots
from boxwright.data.records import PathText, Records, pack_paths

_log = logging.getLogger(__name__)

_KEYS = ("images", "annotations", "categories")


def read_coco(path: PathText) -> Records:
    """Return the images and boxes of a COCO json, or of the one such json in a folder.

    Images are looked for beside the json and one folder up, there also in `images/` and in a folder named as the json
    (`val2017/` for `instances_val2017.json`). Those that are not found are left out, logged, and named in
    `Records.missing`. Classes are in the order of their category ids, so that two files of one set agree.

    Raises:
        DataError: there is no such json or more than one, it is malformed, or none of its images exists.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> text = '''{"images": [{"id": 7, "file_name": "a.jpg", "height": 40, "width": 60}],
        ...   "annotations": [{"id": 1, "image_id": 7, "category_id": 3, "bbox": [1, 2, 10, 20]}],
        ...   "categories": [{"id": 3, "name": "cat"}]}'''
        >>> with TemporaryDirectory() as folder:
        ...     Path(folder, "a.jpg").touch()
        ...     _ = Path(folder, "instances.json").write_text(text)
        ...     records = read_coco(folder)
        >>> records.names, records.boxes(0).tolist()
        (('cat',), [[1.0, 2.0, 11.0, 22.0]])
    """
    file = Path(path)
    if file.is_dir():
        found = find_coco_json(file)
        if found is None:
            raise DataError(f"There is no COCO json in {str(file)!r}. Name the json file itself.")
        file = found
    images, annotations, categories = _load(file)
    if not images:
        raise DataError(f"{str(file)!r} lists no images: an empty set can't be used.")
    if not categories:
        raise DataError(f"{str(file)!r} lists no categories: boxes need classes.")

    categories = sorted(categories, key=_id_of("category", file))
    category_ids = _ids(categories, "category", file)
    names = tuple(str(_value(c, "name", "category", file)) for c in categories)
    image_ids = _ids(images, "image", file)
    file_names = [str(_value(image, "file_name", "image", file)) for image in images]

    owners = _owners(annotations, "image_id", image_ids, "image", file)
    classes = _owners(annotations, "category_id", category_ids, "category", file)
    boxes_xywh = _numbers([_value(a, "bbox", "annotation", file) for a in annotations], (4,), annotations, "bbox", file)
    boxes_xyxy = xywh_to_xyxy(boxes_xywh).astype(np.float32)
    # Where the file has no area, that of the box.
    given = [a.get("area") for a in annotations]
    own = area_xyxy(boxes_xyxy).tolist()
    areas = _numbers([o if g is None else g for g, o in zip(given, own, strict=True)], (), annotations, "area", file)

    order = np.argsort(owners, kind="stable")
    offsets = np.zeros(len(images) + 1, np.int64)
    np.cumsum(np.bincount(owners, minlength=len(images)), out=offsets[1:])
    root, exists = find_images(file, file_names)
    path_bytes, path_offsets = pack_paths(file_names)
    records = Records(
        root=root,
        path_bytes=path_bytes,
        path_offsets=path_offsets,
        image_ids=np.array(image_ids, np.int64),
        sizes_hw=_sizes(images, file),
        boxes_xyxy=boxes_xyxy[order],
        class_ids=classes[order].astype(np.int32),
        crowd=np.array([bool(a.get("iscrowd", 0)) for a in annotations], np.bool_)[order],
        areas=areas[order].astype(np.float32),
        offsets=offsets,
        names=names,
        category_ids=tuple(category_ids),
        missing=tuple(n for n, there in zip(file_names, exists, strict=True) if not there),
    )
    if records.missing:
        _log.warning(
            "%d of the %d images of %r are not in %r and are left out: %s.",
            len(records.missing), len(images), str(file), str(root), _some(records.missing),
        )  # fmt: skip
        return records.select(exists)
    return records


def write_coco(records: Records, path: PathText) -> None:
    """Write a set as a COCO json that `read_coco` reads back as the same set.

    Image and category ids are kept; annotations are counted from 1. Where `read_coco` would not find the images,
    `file_name` leads from the json's folder to them.

    Raises:
        DataError: the file can't be written.
    """
    file = Path(path)
    near = Path(os.path.abspath(records.root)) in image_roots(file)
    # Links are resolved because ".." leads out of the folder that a link points to.
    way = os.path.relpath(os.path.realpath(records.root), os.path.realpath(file.parent))
    images = []
    for i, (image_id, (height, width)) in enumerate(
        zip(records.image_ids.tolist(), records.sizes_hw.tolist(), strict=True)
    ):
        name = records.relative_path(i) if near else os.path.normpath(os.path.join(way, records.relative_path(i)))
        image = {"id": image_id, "file_name": name}
        images.append(image | {"height": height, "width": width} if height else image)
    annotations = [
        {
            "id": number,
            "image_id": image_id,
            "category_id": records.category_ids[class_id],
            "bbox": box,
            "area": area,
            "iscrowd": int(crowd),
        }
        for number, (image_id, class_id, box, area, crowd) in enumerate(
            zip(
                np.repeat(records.image_ids, np.diff(records.offsets)).tolist(),
                records.class_ids.tolist(),
                _shortest_xywh(records.boxes_xyxy).tolist(),
                _shortest(records.areas).tolist(),
                records.crowd.tolist(),
                strict=True,
            ),
            start=1,
        )
    ]
    categories = [{"id": i, "name": name} for i, name in zip(records.category_ids, records.names, strict=True)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    half_written = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        half_written.write_bytes(text.encode("utf-8", "surrogatepass"))
        half_written.replace(file)
    except OSError as error:
        half_written.unlink(missing_ok=True)
        raise DataError(f"Cannot write {str(file)!r}: {error.strerror}. Choose another place.") from error


def find_coco_json(folder: Path) -> Path | None:
    """Return the one COCO json in a folder or in its `annotations/`, None when there is none.

    Raises:
        DataError: there are several; the message lists them.
    """
    files = [f for f in sorted([*folder.glob("*.json"), *folder.glob("annotations/*.json")]) if f.is_file()]
    # A single file is taken as it is: if something is wrong with it, reading it says what.
    found = files if len(files) == 1 else [f for f in files if looks_like_coco(f)]
    if len(found) > 1:
        raise DataError(
            f"There are {len(found)} COCO json files in {str(folder)!r}: "
            f"{_some([str(f.relative_to(folder)) for f in found])}. Name the one to read."
        )
    return found[0] if found else None


def _load(file: Path) -> tuple[list[Any], list[Any], list[Any]]:
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"There is no file {str(file)!r}. Check the path.") from error
    except OSError as error:
        raise DataError(f"Cannot read {str(file)!r}: {error.strerror}. Check the file.") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{str(file)!r} is not valid json: line {error.lineno}, column {error.colno}: {error.msg}. "
            "Export or copy it again."
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{str(file)!r} is not valid json: {error}. Export or copy it again.") from error
    parts = [content.get(key) if isinstance(content, dict) else None for key in _KEYS]
    for key, part in zip(_KEYS, parts, strict=True):
        if not isinstance(part, list) or not all(isinstance(entry, dict) for entry in part):
            raise DataError(f"{str(file)!r} is no COCO json: it has no list of {key!r}. Use an instances json.")
    images, annotations, categories = parts
    return images or [], annotations or [], categories or []


def _value(entry: dict[str, Any], key: str, kind: str, file: Path) -> Any:
    if entry.get(key) is None:
        raise DataError(f"{str(file)!r}: {kind} {entry.get('id')!r} has no {key!r}. Correct it or take it out.")
    return entry[key]


def _id_of(kind: str, file: Path) -> Callable[[dict[str, Any]], int]:
    def get(entry: dict[str, Any]) -> int:
        value = _value(entry, "id", kind, file)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**63:
            raise DataError(f"{str(file)!r}: the {kind} id {value!r} is not an integer. Number them 1, 2, 3 ...")
        return value

    return get


def _ids(entries: Sequence[dict[str, Any]], kind: str, file: Path) -> list[int]:
    ids = [_id_of(kind, file)(entry) for entry in entries]
    twice = [value for value, count in Counter(ids).items() if count > 1]
    if twice:
        raise DataError(f"{str(file)!r}: several entries have the {kind} id {twice[0]!r}. Give each its own.")
    return ids


def _owners(
    annotations: Sequence[dict[str, Any]], key: str, ids: Sequence[int], kind: str, file: Path
) -> NDArray[np.int64]:
    """Return the index into `ids` that each annotation points to."""
    index = {value: n for n, value in enumerate(ids)}
    owners = np.zeros(len(annotations), np.int64)
    for n, annotation in enumerate(annotations):
        try:
            owners[n] = index[annotation[key]]
        except (KeyError, TypeError):  # TypeError: a list or a dict where an id should be
            raise DataError(
                f"{str(file)!r}: annotation {annotation.get('id')!r} belongs to {kind} {annotation.get(key)!r}, "
                "which the file does not have. Correct it or take it out."
            ) from None
    return owners


def _numbers(
    values: Sequence[Any], shape: tuple[int, ...], annotations: Sequence[dict[str, Any]], key: str, file: Path
) -> NDArray[np.float64]:
    """Return one row of numbers an annotation."""
    if not values:
        return np.zeros((0, *shape))
    array = _as_numbers(values, (len(values), *shape))
    if array is not None:
        return array
    wrong = next(a for a, v in zip(annotations, values, strict=True) if _as_numbers(v, shape) is None)
    raise DataError(
        f"{str(file)!r}: annotation {wrong.get('id')!r} has {key} {wrong[key]!r} where "
        f"{'4 finite numbers' if shape else 'a finite number'} should be. Correct it or take it out."
    )


def _as_numbers(values: Any, shape: tuple[int, ...]) -> NDArray[np.float64] | None:
    try:
        array = np.array(values, np.float64)
    except (ValueError, TypeError, OverflowError):
        return None
    # The bound leaves room for sums and areas in float32; NaN fails it too.
    return array if array.shape == shape and (np.abs(array) < 1e12).all() else None


def _sizes(images: Sequence[dict[str, Any]], file: Path) -> NDArray[np.int32]:
    try:
        return np.array([(i.get("height") or 0, i.get("width") or 0) for i in images], np.int32)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{str(file)!r}: an image's height or width is no whole number: {error}.") from error


def _some(names: Sequence[str], limit: int = 5) -> str:
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def _shortest(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the shortest decimals that still mean the same float32: 0.1, not 0.10000000149."""
    return values.astype("U32").astype(np.float64)


def _shortest_xywh(boxes_xyxy: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return corner and size in short decimals that give the same float32 corners again."""
    low, high = _shortest(boxes_xyxy[:, :2]), _shortest(boxes_xyxy[:, 2:])
    size = np.round(high - low, 6)
    same = (low + size).astype(np.float32) == boxes_xyxy[:, 2:]
    return np.concatenate((low, np.where(same, size, high - low)), axis=1)
