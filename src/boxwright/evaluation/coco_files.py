"""COCO AP of a results file that exists, against an annotation file."""

import json
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError
from boxwright.evaluation.coco import CocoEvaluator
from boxwright.evaluation.coco_metrics import CocoMetrics

_BOX_FIELDS = "image_id, category_id, bbox (x, y, width, height)"


def evaluate_files(truth_json: Path | str, results_json: Path | str) -> CocoMetrics:
    """Return the COCO numbers of a results file; the classes are the categories of the annotation file.

    A truth box without `area` gets the area of its box, and one without `iscrowd` is no crowd.

    Raises:
        DataError: a file can't be read or is no such JSON, or a box is of an image or a category that the annotation
            file does not list.
    """
    truth_path, results_path = Path(truth_json), Path(results_json)
    truth = _read_json(truth_path)
    if not isinstance(truth, dict):
        raise DataError(f"{str(truth_path)!r} holds no COCO annotations: it must be one object with lists in it.")
    results = _read_json(results_path)
    if not isinstance(results, list):
        raise DataError(f"{str(results_path)!r} holds no COCO results: it must be one list of detections.")

    images = _table(truth.get("images"), f"{truth_path}: images", "id", _id_row)[:, 0].astype(np.int64)
    categories = _table(truth.get("categories"), f"{truth_path}: categories", "id", _id_row)[:, 0].astype(np.int64)
    boxes = _table(truth.get("annotations"), f"{truth_path}: annotations", _BOX_FIELDS, _truth_row)
    found = _table(results, str(results_path), f"{_BOX_FIELDS}, score", _result_row)
    names = [str(entry.get("name", entry["id"])) for entry in truth["categories"]]
    if not names:
        raise DataError(f"{str(truth_path)!r} lists no categories, so there is nothing to score.")
    for values, what in ((images.tolist(), "image id"), (categories.tolist(), "category id"), (names, "category name")):
        _refuse_twice(values, what, truth_path)
    for rows, path in ((boxes, truth_path), (found, results_path)):
        _refuse_unknown(rows[:, 0], images, "image_id", path, truth_path)
        _refuse_unknown(rows[:, 1], categories, "category_id", path, truth_path)

    order = np.argsort(categories)
    return CocoEvaluator.from_state(
        {
            "names": np.array([names[i] for i in order], np.str_),
            "max_detections": np.array((1, 10, 100)),
            "image_ids": images,
            "truth_image_ids": boxes[:, 0],
            "truth_class_ids": np.searchsorted(categories[order], boxes[:, 1]),
            "truth_boxes_xywh": boxes[:, 2:6],
            "truth_areas": boxes[:, 6],
            "truth_crowd": boxes[:, 7],
            "detection_image_ids": found[:, 0],
            "detection_class_ids": np.searchsorted(categories[order], found[:, 1]),
            "detection_boxes_xywh": found[:, 2:6],
            "detection_scores": found[:, 6],
        }
    ).evaluate()


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{str(path)!r} can't be read: {error.strerror}. Check the path.") from error
    except ValueError as error:
        raise DataError(f"{str(path)!r} is not JSON: {error}. Was it cut off or compressed?") from error


def _id_row(entry: dict[str, Any]) -> tuple[Any, ...]:
    return (entry["id"],)


def _truth_row(entry: dict[str, Any]) -> tuple[Any, ...]:
    x, y, width, height = entry["bbox"]
    area, crowd = entry.get("area", width * height), entry.get("iscrowd", 0)
    return entry["image_id"], entry["category_id"], x, y, width, height, area, crowd


def _result_row(entry: dict[str, Any]) -> tuple[Any, ...]:
    x, y, width, height = entry["bbox"]
    return entry["image_id"], entry["category_id"], x, y, width, height, entry["score"]


def _table(
    entries: Any, source: str, fields: str, read_row: Callable[[dict[str, Any]], tuple[Any, ...]]
) -> NDArray[np.float64]:
    """Return the numbers of a JSON list, one row an entry."""
    if not isinstance(entries, list):
        raise DataError(f"{source} is {'missing' if entries is None else 'no list'}. COCO files need it.")
    rows: list[tuple[float, ...]] = []
    for index, entry in enumerate(entries):
        try:
            row = tuple(float(value) for value in read_row(entry))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _bad_entry(source, index, entry, fields) from error
        if not all(map(isfinite, row)):
            raise _bad_entry(source, index, entry, fields)
        rows.append(row)
    # An empty list has no width of its own; eight columns are enough for every kind of row.
    return np.array(rows, np.float64) if rows else np.zeros((0, 8))


def _bad_entry(source: str, index: int, entry: Any, fields: str) -> DataError:
    return DataError(f"{source}[{index}] is {repr(entry)[:120]}. Every entry needs finite numbers for: {fields}.")


def _refuse_twice(values: list[Any], what: str, path: Path) -> None:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            raise DataError(f"{str(path)!r} has the {what} {value!r} twice. Give every one its own.")
        seen.add(value)


def _refuse_unknown(
    ids: NDArray[np.float64], known: NDArray[np.int64], field: str, path: Path, truth_path: Path
) -> None:
    unknown = ids[~np.isin(ids, known)]
    if len(unknown):
        raise DataError(
            f"{str(path)!r}: {len(unknown)} of {len(ids)} boxes are unknown by {field}, the first has "
            f"{field}={unknown[0]:.0f}, which {str(truth_path)!r} does not list. Check that the files belong together."
        )
