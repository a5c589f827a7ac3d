"""Curves over the threshold by hand, and the confusion matrix of supervision."""

import numpy as np
import pytest
import supervision
from support.crowds import NAMES, SIZE_HW, make_evaluator

from boxwright.core.boxes import xywh_to_xyxy
from boxwright.core.types import Detections
from boxwright.evaluation.coco import CocoEvaluator
from boxwright.evaluation.curves import POINTS, class_curves, confusion_matrix, total_curve
from boxwright.evaluation.errors import judge


def two_of_three() -> CocoEvaluator:
    """Return an evaluator with three objects of the first class, two of them found, and a false box between them."""
    boxes = [[0, 0, 20, 20], [50, 50, 70, 70], [100, 100, 120, 120]]
    evaluator = CocoEvaluator(NAMES)
    evaluator.add(
        image_id=1,
        size_hw=SIZE_HW,
        truth_boxes_xyxy=boxes,
        truth_class_ids=[0, 0, 0],
        detections=Detections(
            boxes_xyxy=[boxes[0], [150, 150, 170, 170], boxes[1], [0, 150, 20, 170]],
            scores=[0.9, 0.8, 0.7, 0.7],
            class_ids=[0, 0, 0, 0],
            names=NAMES,
            size_hw=SIZE_HW,
        ),
    )
    return evaluator


def test_precision_recall_and_the_best_threshold_of_a_class() -> None:
    first, second, *_ = class_curves(judge(two_of_three()))
    # Both boxes with 0.7 pass one threshold together.
    assert first.thresholds.tolist() == pytest.approx([0.9, 0.8, 0.7])
    assert first.precision.tolist() == pytest.approx([1, 1 / 2, 2 / 4])
    assert first.recall.tolist() == pytest.approx([1 / 3, 1 / 3, 2 / 3])
    assert (first.best, first.best_f1) == (pytest.approx(0.7), pytest.approx(4 / 7))
    assert first.f1.max() == pytest.approx(4 / 7)
    assert (second.best, second.best_f1, len(second.thresholds)) == (None, 0.0, 0)


def test_a_long_curve_is_thinned_but_keeps_its_best_point_and_its_ends() -> None:
    verdicts = judge(make_evaluator(3, images=150))
    curve = total_curve(verdicts)
    assert 50 < len(curve.thresholds) <= POINTS + 1
    assert (np.diff(curve.thresholds) < 0).all()
    assert (curve.thresholds[0], curve.thresholds[-1]) == (
        verdicts.scores.max(),
        verdicts.scores[~verdicts.ignored].min(),
    )
    assert curve.best in curve.thresholds
    assert curve.f1.max() == pytest.approx(curve.best_f1)


@pytest.mark.parametrize("min_score", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("seed", range(4))
def test_the_confusion_matrix_is_that_of_supervision(seed: int, min_score: float) -> None:
    verdicts = judge(make_evaluator(seed))
    found, truth = [], []
    for image in range(len(verdicts.image_ids)):
        some = (verdicts.image == image) & ~verdicts.ignored
        found.append(
            supervision.Detections(
                xyxy=xywh_to_xyxy(verdicts.boxes_xywh[some]),
                class_id=verdicts.class_ids[some],
                confidence=verdicts.scores[some],
            )
        )
        some = verdicts.truth_image == image
        truth.append(
            supervision.Detections(
                xyxy=xywh_to_xyxy(verdicts.truth_boxes_xywh[some]), class_id=verdicts.truth_class_ids[some]
            )
        )
    expected = supervision.ConfusionMatrix.from_detections(
        found, truth, list(NAMES), conf_threshold=min_score, iou_threshold=0.5
    ).matrix
    matrix = confusion_matrix(verdicts, min_score=min_score)
    np.testing.assert_array_equal(matrix, expected)
    assert matrix[:-1].sum() == len(verdicts.truth_class_ids)
