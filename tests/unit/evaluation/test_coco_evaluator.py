import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boxwright.core.errors import DataError, UsageError
from boxwright.core.types import Detections
from boxwright.evaluation.coco import CocoEvaluator

NAMES = ("cat", "dog")
SIZE_HW = (200, 300)
BOX = (10, 10, 60, 60)


def found(*rows: tuple[Any, ...], names: tuple[str, ...] = NAMES, size_hw: tuple[int, int] = SIZE_HW) -> Detections:
    """Return detections of rows (box, class id, score)."""
    return Detections(
        boxes_xyxy=[row[0] for row in rows],
        class_ids=[row[1] for row in rows],
        scores=[row[2] for row in rows],
        names=names,
        size_hw=size_hw,
    )


def add(evaluator: CocoEvaluator, image_id: int = 1, **changes: Any) -> None:
    """Add an image with one cat, which is found exactly."""
    values: dict[str, Any] = {
        "image_id": image_id,
        "size_hw": SIZE_HW,
        "truth_boxes_xyxy": [BOX],
        "truth_class_ids": [0],
        "detections": found((BOX, 0, 0.9)),
    }
    evaluator.add(**{**values, **changes})


def test_a_perfect_detector_has_ap_1_where_there_is_truth_and_none_elsewhere() -> None:
    evaluator = CocoEvaluator(NAMES)
    add(evaluator)
    metrics = evaluator.evaluate()
    assert pytest.approx(1.0) == metrics.AP
    assert (metrics.AP_small, metrics.AP_large, metrics.per_class["dog"].AP) == (-1.0, -1.0, -1.0)
    assert (metrics.images, metrics.truths, metrics.detections) == (1, 1, 1)
    assert metrics.per_class["cat"].truths == 1


def test_json_says_null_where_a_number_is_not_available() -> None:
    evaluator = CocoEvaluator(NAMES)
    add(evaluator)
    values = json.loads(json.dumps(evaluator.evaluate().to_dict(), allow_nan=False))
    assert values["AP_large"] is None
    assert values["per_class"]["dog"] == {"AP": None, "AP50": None, "AP75": None, "AR100": None, "truths": 0}
    assert values["AP_medium"] == pytest.approx(1.0)
    assert values["max_detections"] == [1, 10, 100]


def test_the_lines_name_the_limits_in_use() -> None:
    evaluator = CocoEvaluator(NAMES, max_detections=(1, 10, 300))
    add(evaluator)
    lines = evaluator.evaluate().lines()
    assert lines[0] == " Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=300 ] = 1.000"
    assert lines[5] == " Average Precision  (AP) @[ IoU=0.50:0.95 | area= large | maxDets=300 ] = -1.000"
    assert lines[7] == " Average Recall     (AR) @[ IoU=0.50:0.95 | area=   all | maxDets= 10 ] = 1.000"
    assert len(lines) == 12


def test_a_detection_inside_a_crowd_is_neither_right_nor_wrong() -> None:
    crowd_xyxy = (100, 0, 300, 200)
    inside = found(((120, 20, 160, 60), 0, 0.99), (BOX, 0, 0.5))
    truth = {"truth_boxes_xyxy": [BOX, crowd_xyxy], "truth_class_ids": [0, 0], "detections": inside}
    with_crowd, without = CocoEvaluator(NAMES), CocoEvaluator(NAMES)
    add(with_crowd, **truth, truth_crowd=[False, True])
    add(without, **truth)
    assert pytest.approx(1.0) == with_crowd.evaluate().AP
    assert with_crowd.evaluate().truths == 1
    assert without.evaluate().AP < 0.5


def test_given_areas_decide_what_is_small() -> None:
    evaluator = CocoEvaluator(NAMES)
    add(evaluator, truth_areas=[1000])
    metrics = evaluator.evaluate()
    assert (metrics.AP_small, metrics.AP_medium) == (pytest.approx(1.0), -1.0)


def test_an_image_without_truth_makes_its_detections_wrong() -> None:
    evaluator = CocoEvaluator(NAMES)
    add(evaluator)
    add(evaluator, 2, truth_boxes_xyxy=[], truth_class_ids=[], detections=found((BOX, 0, 0.95)))
    metrics = evaluator.evaluate()
    assert pytest.approx(0.5) == metrics.AP
    assert metrics.images == 2


def test_an_image_without_detections_lowers_the_recall() -> None:
    evaluator = CocoEvaluator(NAMES)
    add(evaluator)
    add(evaluator, 2, detections=found())
    assert pytest.approx(0.5) == evaluator.evaluate().AR100


def test_an_evaluator_that_saw_nothing_has_no_numbers() -> None:
    metrics = CocoEvaluator(NAMES).evaluate()
    assert {metrics.AP, metrics.AR100, metrics.per_class["cat"].AP} == {-1.0}
    assert metrics.images == 0


def test_more_images_may_follow_an_evaluation() -> None:
    evaluator = CocoEvaluator(NAMES)
    add(evaluator)
    evaluator.evaluate()
    add(evaluator, 2, detections=found())
    assert pytest.approx(0.5) == evaluator.evaluate().AR100


def test_negative_and_huge_image_ids_are_told_apart() -> None:
    evaluator = CocoEvaluator(NAMES)
    for image_id in (-5, 2**62, 2**62 + 1):
        add(evaluator, image_id)
    assert (len(evaluator), evaluator.evaluate().AP) == (3, pytest.approx(1.0))


def test_evaluating_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    evaluator = CocoEvaluator(NAMES, max_detections=(1, 2, 3))
    add(evaluator)
    evaluator.evaluate().lines()
    assert capfd.readouterr() == ("", "")


def test_a_state_survives_a_file_of_plain_arrays(tmp_path: Path) -> None:
    evaluator = CocoEvaluator(NAMES, max_detections=(1, 2, 3))
    add(evaluator)
    np.savez(tmp_path / "shard.npz", **evaluator.state())
    with np.load(tmp_path / "shard.npz", allow_pickle=False) as state:
        again = CocoEvaluator.from_state(state)
    assert again.evaluate() == evaluator.evaluate()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_ids": None}, "'image_ids' is missing"),
        ({"truth_image_ids": np.array([8])}, "truth_image_ids holds 8"),
        ({"detection_scores": np.zeros(3)}, "detection_scores has 3 values for 1 boxes"),
    ],
)
def test_a_state_that_does_not_fit_together_is_refused(change: dict[str, Any], message: str) -> None:
    evaluator = CocoEvaluator(NAMES)
    add(evaluator)
    state = {key: value for key, value in {**evaluator.state(), **change}.items() if value is not None}
    with pytest.raises(UsageError, match=message):
        CocoEvaluator.from_state(state)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({}, UsageError, "image_id=1 is there twice"),
        ({"truth_class_ids": [2]}, UsageError, "truth_class_ids reach from 2 to 2, but there are 2 names"),
        ({"truth_class_ids": [-1]}, UsageError, "truth_class_ids reach from -1"),
        ({"truth_class_ids": [0, 1]}, UsageError, "truth_class_ids has 2 values for 1 boxes"),
        ({"truth_crowd": [True, False]}, UsageError, "truth_crowd has 2 values for 1 boxes"),
        ({"truth_areas": []}, UsageError, "truth_areas has 0 values for 1 boxes"),
        ({"truth_boxes_xyxy": np.zeros((4, 5))}, UsageError, r"shape \(4, 5\), not \(N, 4\)"),
        ({"detections": found(names=("dog", "cat"))}, UsageError, "of the classes 'dog', 'cat'"),
        ({"detections": found(size_hw=(416, 416))}, UsageError, r"for an image of \(416, 416\)"),
        ({"truth_boxes_xyxy": [(0, 0, 5, np.nan)]}, DataError, "truth_boxes_xywh holds a value that is not a finite"),
    ],
)
def test_an_image_that_does_not_fit_is_refused_and_leaves_no_trace(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    evaluator = CocoEvaluator(NAMES)
    add(evaluator)
    before = evaluator.evaluate()
    with pytest.raises(error, match=message):
        add(evaluator, **{"image_id": 1 if not changes else 2, **changes})
    assert evaluator.evaluate() == before


def test_evaluators_that_saw_the_same_image_do_not_merge() -> None:
    first, second = CocoEvaluator(NAMES), CocoEvaluator(NAMES)
    add(first, 7)
    add(second, 7)
    with pytest.raises(UsageError, match="image_id=7 is there twice"):
        first.merge(second)


@pytest.mark.parametrize(
    "other", [CocoEvaluator(("cat", "cow")), CocoEvaluator(NAMES, max_detections=(1, 2, 3))], ids=["names", "limits"]
)
def test_evaluators_of_other_classes_or_limits_do_not_merge(other: CocoEvaluator) -> None:
    with pytest.raises(UsageError, match="same classes and limits"):
        CocoEvaluator(NAMES).merge(other)


@pytest.mark.parametrize("limits", [(1, 10), (0, 1, 2), (10, 1, 100), (1, 1, 100)])
def test_limits_that_do_not_rise_are_refused(limits: Any) -> None:
    with pytest.raises(UsageError, match="three rising positive numbers"):
        CocoEvaluator(NAMES, max_detections=limits)


@pytest.mark.parametrize(
    ("names", "message"), [((), "at least one class name"), (("cat", "dog", "cat"), "'cat' appears twice")]
)
def test_class_names_must_be_there_and_differ(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CocoEvaluator(names)


def many_images() -> CocoEvaluator:
    """Return an evaluator of 30 images with three classes, one of which is rare."""
    names, rng = ("cat", "cow", "dog"), np.random.default_rng(3)
    evaluator = CocoEvaluator(names)
    for image_id in range(30):
        low = rng.uniform(0, 100, (4, 2))
        boxes = np.concatenate((low, low + rng.uniform(10, 90, (4, 2))), axis=1)
        classes = rng.choice(3, 4, p=[0.6, 0.02, 0.38])
        near = boxes + rng.normal(0, 3, boxes.shape)
        rows = [(box, int(c), float(s)) for box, c, s in zip(near, classes, rng.random(4), strict=True)]
        evaluator.add(
            image_id=image_id, size_hw=SIZE_HW, truth_boxes_xyxy=boxes, truth_class_ids=classes,
            detections=found(*rows, names=names),
        )  # fmt: skip
    return evaluator


@pytest.mark.parametrize("most_rows", [1, 60, 150])
def test_a_set_that_is_evaluated_in_groups_of_classes_has_the_same_numbers(
    most_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = many_images().evaluate().to_dict()
    assert 0.1 < expected["AP"] < 0.9
    monkeypatch.setattr("boxwright.evaluation.coco._MOST_ROWS", most_rows)
    monkeypatch.setattr("boxwright.evaluation.coco._JOINED", 7)
    assert many_images().evaluate().to_dict() == expected
