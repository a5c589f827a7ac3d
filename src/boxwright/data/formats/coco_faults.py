"""COCO json files with faults in them: `read_coco_with_faults` reads what can be read and names the rest."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.core.errors import DataError
from boxwright.data.formats.coco import read_coco
from boxwright.data.formats.coco_folder import find_coco
from boxwright.data.formats.faults import Fault
from boxwright.data.formats.image_folder import find_images
from boxwright.data.records import Records
from boxwright.vision.decode import list_images


def read_coco_with_faults(file: Path, faults: list[Fault]) -> Records:
    """Return the images of a COCO json and those of its boxes that make sense; the others become faults.

    A file without faults gives what `read_coco` gives. Images that lie with the others and that the json does not name
    are faults too, where there is no second json that may name them.

    Raises:
        DataError: the file as a whole can't be used.
    """
    try:
        records = read_coco(file)
    except DataError as error:
        records = _read_what_is_right(file, faults, error)
    around = find_coco(file.parent.parent if file.parent.name == "annotations" else file.parent)
    if around is None or len(around.every) <= 1:
        listed = {os.path.abspath(records.path(i)) for i in range(len(records))}
        for image in list_images(records.root, recursive=True):
            if os.path.abspath(image) not in listed:
                message = f"The image {str(image)!r} is not in {str(file)!r} and is left out."
                faults.append(Fault(rule="unlabelled-image", severity="warning", path=str(image), message=message))
    return records


def _read_what_is_right(file: Path, faults: list[Fault], refusal: DataError) -> Records:
    try:
        content = json.loads(file.read_bytes())
        images, annotations = _dicts(content["images"]), _dicts(content["annotations"])
        categories = sorted(_dicts(content["categories"]), key=lambda c: c["id"])
        category_ids = [_whole(c["id"]) for c in categories]
        names = [str(c["name"]) for c in categories]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise refusal from None
    if not images or not categories or len(set(category_ids)) < len(category_ids):
        raise refusal

    where = repr(str(file))
    index: dict[int, int] = {}
    kept: list[dict[str, Any]] = []
    for image in images:
        image_id, name = image.get("id"), image.get("file_name")
        if not isinstance(image_id, int) or not _is_whole(image_id) or not name or image_id in index:
            why = "its id is given twice" if _get(index, image_id) is not None else "it has no id or file_name"
            message = f"{where}: image {image_id!r} ({name!r}) is left out: {why}."
            faults.append(Fault(rule="bad-label", severity="error", path=str(name or file), message=message))
            continue
        index[image_id] = len(kept)
        kept.append(image)
    if not kept:
        raise refusal
    file_names = [str(image["file_name"]) for image in kept]
    root, exists = find_images(file, file_names)

    class_of = {category_id: n for n, category_id in enumerate(category_ids)}
    rows: list[list[tuple[list[float], int, bool, float]]] = [[] for _ in kept]
    for annotation in annotations:
        owner = _get(index, annotation.get("image_id"))
        path = str(file) if owner is None else str(root / file_names[owner])
        rule, problem = _problem(annotation, owner, class_of)
        if problem or owner is None:
            message = f"{where}: annotation {annotation.get('id')!r} {problem}."
            faults.append(Fault(rule=rule, severity="error", path=path, message=message))
            continue
        x, y, width, height = map(float, annotation["bbox"])
        area = annotation.get("area")
        corners = np.array([x, y, x + width, y + height], np.float32)
        own = float(np.prod((corners[2:] - corners[:2]).clip(0)))
        row = corners.tolist(), class_of[annotation["category_id"]], bool(annotation.get("iscrowd", 0))
        rows[owner].append((*row, own if area is None else float(area)))

    sizes = []
    for image, name in zip(kept, file_names, strict=True):
        size = image.get("height") or 0, image.get("width") or 0
        if not all(_is_whole(side) and 0 <= side < 2**31 for side in size):
            message = f"{where}: height and width of {name!r} are {size!r} where whole numbers should be."
            faults.append(Fault(rule="bad-label", severity="error", path=str(root / name), message=message))
            size = 0, 0
        sizes.append(size)
    records = Records.from_lists(
        root=root,
        paths=file_names,
        boxes_xyxy=[[row[0] for row in r] for r in rows],
        class_ids=[[row[1] for row in r] for r in rows],
        crowd=[[row[2] for row in r] for r in rows],
        areas=[[row[3] for row in r] for r in rows],
        names=names,
        category_ids=category_ids,
        image_ids=list(index),
        sizes_hw=sizes,
    )
    missing = tuple(name for name, there in zip(file_names, exists, strict=True) if not there)
    return replace(records, missing=missing).select(exists)


def _problem(annotation: Mapping[str, Any], owner: int | None, class_of: Mapping[int, int]) -> tuple[str, str]:
    """Return rule and words for what is wrong with an annotation, two empty strings when nothing is."""
    if owner is None:
        return "bad-label", f"belongs to image {annotation.get('image_id')!r}, which the file does not have"
    if _get(class_of, annotation.get("category_id")) is None:
        return "unknown-class", f"belongs to category {annotation.get('category_id')!r}, which the file does not have"
    box, area = annotation.get("bbox"), annotation.get("area")
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        return "bad-label", f"has bbox {box!r} where 4 finite numbers should be"
    if area is not None and not _is_number(area):
        return "bad-label", f"has area {area!r} where a finite number should be"
    return "", ""


def _get(index: Mapping[int, int], key: Any) -> int | None:
    try:
        return index.get(key)
    except TypeError:  # a list or a dict where an id should be
        return None


def _dicts(values: Any) -> Sequence[dict[str, Any]]:
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise TypeError("no list of objects")
    return values


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _whole(value: Any) -> int:
    if not _is_whole(value):
        raise TypeError("no integer")
    return int(value)


def _is_number(value: Any) -> bool:
    # The bound is that of `read_coco`; NaN fails it too.
    return isinstance(value, int | float) and abs(value) < 1e12
