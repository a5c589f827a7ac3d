"""The files of a YOLO set: label texts, the `data.yaml`, lists of images."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from boxwright.core import yaml_file
from boxwright.core.boxes import area_xyxy, cxcywh_to_xyxy, xyxy_to_cxcywh
from boxwright.core.errors import DataError
from boxwright.core.files import is_inside
from boxwright.data.formats.base import SPLIT_FOLDERS, split_of
from boxwright.data.formats.files import read_lines, read_text
from boxwright.data.threads import READERS, map_threads
from boxwright.vision.decode import IMAGE_SUFFIXES, list_images, read_size_hw

CLASS_FILE = "classes.txt"
"""Class names, one per line, for sets without a yaml."""

_YAML_NAMES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")

_MOST_YAML = 1 << 19
_NULLS = ("", "~", "null", "Null", "NULL")  # what means that there is no value

# Leaves room for areas in float32, also after multiplying with the image's size.
_LARGEST = 1e6


def parse_label(text: str, classes: int) -> tuple[NDArray[np.float64], list[tuple[str, str]]]:
    r"""Return the objects in a label text, and rule and message for each wrong line.

    An object is a row of class id, centre x and y, width, height and area, in fractions of the image. The area is NaN
    unless the line has a polygon.

    Example:
        >>> rows, wrong = parse_label("0 0.5 0.5 0.2 0.4\n7 0.5 0.5 1 1\n1 0 0 1 0 1 1\n", classes=2)
        >>> rows.tolist()
        [[0.0, 0.5, 0.5, 0.2, 0.4, nan], [1.0, 0.5, 0.5, 1.0, 1.0, 0.5]]
        >>> wrong
        [('unknown-class', 'line 2: there is no class 7, only 0 to 1.')]
    """
    rows: list[list[float]] = []
    wrong: list[tuple[str, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.split()
        if not fields:
            continue
        try:
            first, *values = map(float, fields)
        except ValueError:
            wrong.append(("bad-label", f"line {number}: {line.strip()[:80]!r} has something other than numbers."))
            continue
        if not all(abs(v) < _LARGEST for v in (first, *values)):  # NaN fails this too
            message = f"line {number}: {line.strip()[:80]!r} has values outside ±1e6; coordinates are fractions."
            wrong.append(("bad-label", message))
        elif first != int(first):
            wrong.append(("bad-label", f"line {number}: the class {fields[0]!r} is not a whole number."))
        elif not 0 <= first < classes:
            message = f"line {number}: there is no class {int(first)}, only 0 to {classes - 1}."
            wrong.append(("unknown-class", message))
        elif len(values) == 4:
            rows.append([first, *values, math.nan])
        elif len(values) >= 6 and len(values) % 2 == 0:
            rows.append([first, *_box_and_area(values)])
        else:
            message = f"line {number}: {len(fields)} numbers are neither a class and a box (5) nor a polygon."
            wrong.append(("bad-label", message))
    return np.array(rows, np.float64).reshape(-1, 6), wrong


def in_pixels(rows: NDArray[np.float64], size_hw: tuple[int, int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the boxes xyxy (K, 4) and the areas (K,) of `parse_label`'s rows in an image of this size."""
    height, width = size_hw
    boxes = (cxcywh_to_xyxy(rows[:, 1:5]) * (width, height, width, height)).astype(np.float32)
    polygons = rows[:, 5] * (height * width)
    return boxes, np.where(np.isnan(polygons), area_xyxy(boxes), polygons).astype(np.float32)


def format_label(boxes_xyxy: NDArray[np.float32], class_ids: NDArray[np.int32], size_hw: tuple[int, int]) -> str:
    """Return the text of a label file, with as many decimals as the same float32 corners need."""
    height, width = size_hw
    scale = np.array([width, height, width, height], np.float64)
    parts = xyxy_to_cxcywh(boxes_xyxy.astype(np.float64)) / scale
    lines = []
    for class_id, box, part in zip(class_ids.tolist(), boxes_xyxy, parts, strict=True):
        for decimals in (6, 9, 12, None):
            # No exponents: not every reader knows them.
            texts = [np.format_float_positional(value, decimals, trim="-") for value in part.tolist()]
            again = (cxcywh_to_xyxy(np.array(texts, np.float64)) * scale).astype(np.float32)
            if np.array_equal(again, box):
                break
        lines.append(f"{class_id} {' '.join(texts)}\n")
    return "".join(lines)


def read_sizes_hw(paths: Sequence[Path]) -> list[tuple[int, int] | None]:
    """Return the size of each image as displayed, from its header; None for a file that can't be read."""

    def read(i: int) -> tuple[int, int] | None:
        try:
            return read_size_hw(paths[i])
        except DataError:
            return None

    # Waiting for the disk is most of the work, so there are more threads than cores.
    return list(map_threads(read, len(paths), READERS))


def find_yaml(folder: Path) -> Path | None:
    """Return the yaml that describes a YOLO set in a folder: `data.yaml`, or the only other one that names images."""
    usual = next((folder / name for name in _YAML_NAMES if (folder / name).is_file()), None)
    if usual is not None:
        return usual
    found = [f for f in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]) if _describes_a_set(f)]
    if len(found) > 1:
        raise DataError(
            f"There are {len(found)} yaml files of YOLO sets in {str(folder)!r}: "
            f"{', '.join(repr(f.name) for f in found)}. Name the one to read."
        )
    return found[0] if found else None


def load_yaml(file: Path) -> Any:
    """Return the values of a yaml file, every scalar as the text that is written there; see `_NULLS`."""
    try:
        return yaml_file.parse(read_text(file, max_bytes=_MOST_YAML), plain=True)
    except yaml.YAMLError as error:
        raise DataError(f"{str(file)!r} is not valid yaml: {' '.join(str(error).split())}. Correct it.") from error


def yaml_images(values: Mapping[Any, Any], file: Path, home: Path | None = None) -> dict[str, tuple[Path, ...]]:
    """Return the folders and lists of images that a yaml names for each split; those inside of `home` come first."""
    images = {}
    # The folder in the yaml is often one of another machine; then the yaml's own folder counts.
    bases = (file.parent / _path_text(_given(values, "path") or ".", file), file.parent)
    for key in SPLIT_FOLDERS:
        value = _given(values, key)
        if not value:
            continue
        found = []
        for one in value if isinstance(value, list) else [value]:
            name = _path_text(one, file)
            # One popular exporter writes "../train/images" where it means "train/images".
            tries = [Path(os.path.normpath(base / s)) for s in (name, name.removeprefix("../")) for base in bases]
            if home is not None:
                tries.sort(key=lambda path: not is_inside(path, home))
            found.append(next((path for path in tries if os.path.exists(path)), tries[0]))
        images[split_of(key) or key] = tuple(found)
    if not images:
        raise DataError(f"{str(file)!r} names no images: it has none of the keys 'train', 'val', 'test'.")
    return images


def yaml_classes(values: Mapping[Any, Any], file: Path) -> tuple[tuple[str, ...] | None, tuple[int, ...] | None]:
    """Return the class names in a yaml and the category ids that a COCO set had for them, None for what is missing."""
    given, ids = _given(values, "names"), _given(values, "category_ids")
    if given is None:
        return None, None
    if isinstance(given, Mapping):
        if set(given) != {str(number) for number in range(len(given))}:
            keys = ", ".join(map(str, list(given)[:5]))
            raise DataError(f"{str(file)!r}: the keys of 'names' are [{keys}]. Number the classes 0, 1, 2 …")
        given = [given[str(number)] for number in range(len(given))]
    if not isinstance(given, list) or not given:
        raise DataError(f"{str(file)!r}: 'names' is {str(given)[:80]!r} where a list of class names should be.")
    for number, name in enumerate(given):
        if not isinstance(name, str) or not name:
            what = "empty" if name == "" else f"a {type(name).__name__}"
            raise DataError(f"{str(file)!r}: the name of class {number} is {what}. Write one word or text in quotes.")
    count = _given(values, "nc")
    if count is not None and str(count) != str(len(given)):
        raise DataError(f"{str(file)!r} has nc {str(count)[:80]} but {len(given)} names. Correct one of them.")
    if ids is None:
        return tuple(given), None
    try:
        numbers = tuple(int(number) for number in ids)
    except (ValueError, TypeError):
        numbers = ()
    if not isinstance(ids, list) or len(set(numbers)) != len(given):
        raise DataError(f"{str(file)!r}: 'category_ids' is {str(ids)[:80]} where one number for each name should be.")
    return tuple(given), numbers


def _given(values: Mapping[Any, Any], key: str) -> Any:
    value = values.get(key)
    return None if isinstance(value, str) and value in _NULLS else value


def _path_text(value: Any, file: Path) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise DataError(f"{str(file)!r} has a {type(value).__name__} where a path should be. Write the path as text.")
    return value


def lists_images(file: Path) -> bool:
    """Return whether a text file is a list of images."""
    lines = read_lines(file)
    return bool(lines) and all(os.path.splitext(line)[1].lower() in IMAGE_SUFFIXES for line in lines[:5])


def listed_images(place: Path) -> list[Path]:
    """Return the images in a folder or in a list file, in order; listed ones need not exist."""
    if os.path.isdir(place):
        return list_images(place, recursive=True)
    return [Path(os.path.normpath(place.parent / line)) for line in read_lines(place)]


def label_folder(folder: Path) -> Path:
    """Return the folder with the labels of a folder of images: in `labels/` for `images/`, else the same.

    Example:
        >>> label_folder(Path("/set/train")).as_posix()
        '/set/train'
    """
    parts = list(folder.parts)
    for at in reversed(range(len(parts))):
        if parts[at] == "images":
            other = Path(*parts[:at], "labels", *parts[at + 1 :])
            return other if Path(*parts[:at], "labels").is_dir() else folder
    return folder


def _describes_a_set(file: Path) -> bool:
    try:
        values = load_yaml(file)
    except DataError:
        return False
    return isinstance(values, Mapping) and "names" in values and any(key in values for key in SPLIT_FOLDERS)


def _box_and_area(points: Sequence[float]) -> tuple[float, ...]:
    """Return the box around a polygon, centre and size, and the polygon's own area."""
    xy = np.array(points, np.float64).reshape(-1, 2)
    low, high = xy.min(axis=0), xy.max(axis=0)
    following = np.roll(xy, -1, axis=0)
    twice = float(np.sum(xy[:, 0] * following[:, 1] - xy[:, 1] * following[:, 0]))
    return (*((low + high) / 2).tolist(), *(high - low).tolist(), abs(twice) / 2)
