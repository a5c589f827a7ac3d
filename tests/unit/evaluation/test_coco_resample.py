"""AP of a draw must be what the evaluator gives for a set that holds the drawn images."""

import numpy as np
import pytest
from numpy.typing import NDArray

from boxwright.core.types import Detections
from boxwright.evaluation.coco import CocoEvaluator
from boxwright.evaluation.resample import match_detections, resample_ap

NAMES = ("a", "b", "c", "never")


def _scene(rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_], Detections]:
    count = int(rng.integers(0, 6))
    boxes = np.concatenate([corner := rng.uniform(0, 60, (count, 2)), corner + rng.uniform(8, 40, (count, 2))], axis=1)
    classes = rng.integers(0, 3, count)
    crowd = rng.random(count) < 0.15
    again = rng.integers(0, count, 2 * count) if count else np.zeros(0, int)
    found = np.concatenate([boxes[again] + rng.normal(0, 2.5, (len(again), 4)), rng.uniform(0, 90, (4, 4))])
    found = np.sort(found.reshape(-1, 2, 2), axis=1).reshape(-1, 4)
    return (
        boxes,
        classes,
        crowd,
        Detections(
            boxes_xyxy=found.astype(np.float32),
            scores=rng.random(len(found)),
            class_ids=np.concatenate([classes[again], rng.integers(0, 3, 4)]),
            names=NAMES,
            size_hw=(100, 100),
        ),
    )


def _evaluator(scenes: list[tuple], weights: NDArray[np.int64]) -> CocoEvaluator:
    evaluator, image_id = CocoEvaluator(NAMES), 0
    for (boxes, classes, crowd, found), times in zip(scenes, weights, strict=True):
        for _ in range(times):
            evaluator.add(
                image_id=image_id,
                size_hw=(100, 100),
                truth_boxes_xyxy=boxes,
                truth_class_ids=classes,
                truth_crowd=crowd,
                detections=found,
            )
            image_id += 1
    return evaluator


@pytest.fixture(scope="module")
def scenes() -> list[tuple]:
    rng = np.random.default_rng(5)
    return [_scene(rng) for _ in range(25)]


def test_the_whole_set_has_the_evaluators_own_ap(scenes: list[tuple]) -> None:
    once = np.ones(len(scenes), np.int64)
    evaluator = _evaluator(scenes, once)
    expected = evaluator.evaluate().AP
    assert 0.1 < expected < 0.9
    assert resample_ap(match_detections(evaluator), once[None]) == pytest.approx([expected], abs=1e-12)


def test_a_draw_has_the_ap_of_a_set_with_its_images_in_it_that_often(scenes: list[tuple]) -> None:
    table = match_detections(_evaluator(scenes, np.ones(len(scenes), np.int64)))
    draws = np.random.default_rng(1).multinomial(len(scenes), np.full(len(scenes), 1 / len(scenes)), size=8)
    expected = [_evaluator(scenes, weights).evaluate().AP for weights in draws]
    assert len({round(ap, 6) for ap in expected}) == 8
    assert resample_ap(table, draws) == pytest.approx(expected, abs=1e-12)


def test_draws_may_be_computed_in_pieces(scenes: list[tuple], monkeypatch: pytest.MonkeyPatch) -> None:
    table = match_detections(_evaluator(scenes, np.ones(len(scenes), np.int64)))
    draws = np.random.default_rng(2).multinomial(len(scenes), np.full(len(scenes), 1 / len(scenes)), size=7)
    whole = resample_ap(table, draws)
    monkeypatch.setattr("boxwright.evaluation.resample.VALUES_AT_ONCE", 50)
    np.testing.assert_array_equal(resample_ap(table, draws), whole)


def test_a_detector_that_finds_nothing_has_no_ap(scenes: list[tuple]) -> None:
    blind = [(b, c, w, Detections.empty(names=NAMES, size_hw=(100, 100))) for b, c, w, _ in scenes]
    once = np.ones(len(scenes), np.int64)
    assert resample_ap(match_detections(_evaluator(blind, once)), once[None]).tolist() == [0.0]
