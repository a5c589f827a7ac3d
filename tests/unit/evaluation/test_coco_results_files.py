import json
from pathlib import Path
from typing import Any

import pytest

from boxwright.core.errors import DataError
from boxwright.evaluation.coco_files import evaluate_files

TRUTH = {
    "images": [{"id": 5}, {"id": 3}],
    # The ids are neither sorted nor without gaps, as in COCO itself.
    "categories": [{"id": 90, "name": "brush"}, {"id": 2, "name": "cat"}],
    "annotations": [
        {"id": 0, "image_id": 5, "category_id": 90, "bbox": [10, 10, 50, 50], "area": 900, "iscrowd": 0},
        {"id": 1, "image_id": 3, "category_id": 2, "bbox": [10, 10, 50, 50]},
    ],
}
RESULTS = [
    {"image_id": 5, "category_id": 90, "bbox": [10, 10, 50, 50], "score": 0.9},
    {"image_id": 3, "category_id": 2, "bbox": [100, 10, 50, 50], "score": 0.8},
]


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(truth: Any, results: Any) -> tuple[Path, Path]:
        paths = tmp_path / "truth.json", tmp_path / "results.json"
        for path, value in zip(paths, (truth, results), strict=True):
            path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        return paths

    return write


def test_classes_are_the_categories_in_the_order_of_their_ids(write: Any) -> None:
    metrics = evaluate_files(*write(TRUTH, RESULTS))
    assert {name: m.AP for name, m in metrics.per_class.items()} == {"cat": 0.0, "brush": pytest.approx(1.0)}
    assert list(metrics.per_class) == ["cat", "brush"]
    assert (metrics.images, metrics.truths, metrics.detections) == (2, 2, 2)


def test_the_area_of_the_file_counts_and_the_box_stands_in_for_a_missing_one(write: Any) -> None:
    metrics = evaluate_files(*write(TRUTH, RESULTS))
    assert (metrics.AP_small, metrics.AP_medium, metrics.AP_large) == (pytest.approx(1.0), 0.0, -1.0)


def test_a_results_file_without_detections_scores_0(write: Any) -> None:
    assert evaluate_files(*write(TRUTH, [])).AP == 0.0


def test_a_set_without_annotations_has_no_ap(write: Any) -> None:
    assert evaluate_files(*write({**TRUTH, "annotations": []}, RESULTS)).AP == -1.0


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ("[{", "'.*results.json' is not JSON"),
        ({"annotations": []}, "one list of detections"),
        ([RESULTS[0], {"image_id": 5}], r"results.json\[1\] is {'image_id': 5}. Every entry needs .* bbox .*, score"),
        ([{**RESULTS[0], "bbox": [1, 2, 3]}], r"\[0\] is .* Every entry needs"),
        ([{**RESULTS[0], "score": None}], r"\[0\] is .* Every entry needs"),
        ([{**RESULTS[0], "score": float("nan")}], r"\[0\] is .* Every entry needs finite numbers"),
        (["cat"], r"\[0\] is 'cat'"),
        ([RESULTS[0], {**RESULTS[0], "image_id": 7}], "1 of 2 boxes are unknown by image_id, the first has image_id=7"),
        ([{**RESULTS[0], "category_id": 1}], "1 of 1 boxes are unknown by category_id, the first has category_id=1"),
    ],
)
def test_bad_results_are_refused_with_the_place(write: Any, results: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        evaluate_files(*write(TRUTH, results))


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        ("", "'.*truth.json' is not JSON"),
        ([], "it must be one object"),
        ({**TRUTH, "images": None}, "truth.json: images is missing"),
        ({**TRUTH, "annotations": {}}, "truth.json: annotations is no list"),
        ({**TRUTH, "images": [{"id": 5}, {"id": 5}, {"id": 3}]}, "the image id 5 twice"),
        ({**TRUTH, "categories": [{"id": 2, "name": "cat"}, {"id": 90, "name": "cat"}]}, "category name 'cat' twice"),
        ({"images": [], "categories": [], "annotations": []}, "lists no categories"),
        ({**TRUTH, "images": [{"id": 5}]}, "truth.json': 1 of 2 boxes are unknown by image_id"),
        ({**TRUTH, "images": [{"file_name": "a.jpg"}]}, r"images\[0\] is .* finite numbers for: id"),
    ],
)
def test_bad_annotations_are_refused_with_the_place(write: Any, truth: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        evaluate_files(*write(truth, RESULTS))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'.*absent.json' can't be read: No such file"):
        evaluate_files(tmp_path / "absent.json", tmp_path / "results.json")
