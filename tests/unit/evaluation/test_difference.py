import numpy as np
import pytest
from support.crowds import NAMES, SIZE_HW, make_evaluator

from boxwright.core.types import Detections
from boxwright.evaluation.coco import CocoEvaluator
from boxwright.evaluation.difference import compare_detections

A, B = (0, 0, 60, 60), (100, 100, 160, 160)


def detector(*found: list[tuple]) -> CocoEvaluator:
    """Return an evaluator of two objects of two classes in each image, for what was found in each."""
    evaluator = CocoEvaluator(NAMES)
    for image_id, rows in enumerate(found):
        evaluator.add(
            image_id=image_id,
            size_hw=SIZE_HW,
            truth_boxes_xyxy=[A, B],
            truth_class_ids=[0, 1],
            detections=Detections(
                boxes_xyxy=[row[0] for row in rows],
                class_ids=[row[1] for row in rows],
                scores=[row[2] for row in rows],
                names=NAMES,
                size_hw=SIZE_HW,
            ),
        )
    return evaluator


def test_the_difference_is_that_of_the_evaluators_and_lies_in_its_interval() -> None:
    state = make_evaluator(5).state()
    kept = np.flatnonzero(np.random.default_rng(0).random(len(state["detection_scores"])) < 0.8)
    thinned = {key: values[kept] if key.startswith("detection_") else values for key, values in state.items()}
    first, second = CocoEvaluator.from_state(thinned), CocoEvaluator.from_state(state)
    found = compare_detections(first, second)
    before, after = first.evaluate(), second.evaluate()
    assert found.ap.value == pytest.approx(after.AP - before.AP)
    assert found.ap.low < found.ap.value < found.ap.high
    for name in NAMES:
        change = found.per_class[name]
        assert change is not None
        assert change.value == pytest.approx(after.per_class[name].AP - before.per_class[name].AP)
        assert change.low <= change.value <= change.high


def test_images_are_sorted_by_what_changed_in_them() -> None:
    both = [(A, 0, 0.9), (B, 1, 0.9)]
    first = detector(both, both, both, [(A, 0, 0.9)])
    second = detector(both, [(A, 0, 0.9)], [((10, 130, 50, 190), 0, 0.9), ((110, 10, 150, 50), 0, 0.9)], both)
    found = compare_detections(first, second)
    told = [(c.image, c.gained, c.lost, c.false_before, c.false_after, c.balance) for c in found.images]
    assert told == [(2, 0, 2, 0, 2, -4), (1, 0, 1, 0, 0, -1), (3, 1, 0, 0, 0, 1)]
    assert found.per_class["c"] is None


def test_a_detector_that_finds_nothing_can_be_compared() -> None:
    found = compare_detections(detector([], []), detector([(A, 0, 0.9)], []))
    assert found.ap.value == pytest.approx(0.505 / 2, abs=0.01)
    assert [c.gained for c in found.images] == [1]
