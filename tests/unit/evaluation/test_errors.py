"""Kinds and costs of errors must be those of TIDE; the figures are tidecv 1.0.1's, for the same boxes."""

from typing import Any

import numpy as np
import pytest
from support.crowds import make_evaluator

from boxwright.core.types import Detections
from boxwright.evaluation.coco import CocoEvaluator
from boxwright.evaluation.errors import KINDS, judge, price

NAMES = ("cat", "dog")
BOX = (0, 0, 100, 100)
TIDECV = {
    (0, 40, 8, 4): {
        "AP": 0.20997016, "class": 0.07532214, "location": 0.09925606, "both": 0.02135193, "duplicate": 0.00984963,
        "background": 0.10216571, "missed": 0.02260412, "all_false": 0.48804964, "all_missed": 0.08417661,
    },
    (9, 3, 60, 150): {
        "AP": 0.13500577, "class": 0.00929831, "location": 0.37903346, "both": 0.0191372, "duplicate": 0.00127845,
        "background": 0.02127212, "missed": 0.01906936, "all_false": 0.36251899, "all_missed": 0.13080555,
    },
}  # fmt: skip


def judged(*rows: tuple[Any, ...], truth: Any = (BOX,), classes: Any = (0,), crowd: Any = (False,)) -> Any:
    evaluator = CocoEvaluator(NAMES)
    evaluator.add(
        image_id=5,
        size_hw=(400, 400),
        truth_boxes_xyxy=truth,
        truth_class_ids=classes,
        truth_crowd=crowd,
        detections=Detections(
            boxes_xyxy=[row[0] for row in rows],
            class_ids=[row[1] for row in rows],
            scores=[row[2] for row in rows],
            names=NAMES,
            size_hw=(400, 400),
        ),
    )
    return judge(evaluator)


@pytest.mark.parametrize(
    ("box", "class_id", "kind", "missed"),
    [
        (BOX, 0, "hit", False),
        (BOX, 1, "class", False),
        ((0, 0, 100, 30), 0, "location", False),
        ((0, 0, 100, 30), 1, "both", True),
        ((200, 200, 300, 300), 0, "background", True),
    ],
)
def test_each_error_has_its_kind(box: Any, class_id: int, kind: str, missed: bool) -> None:
    verdicts = judged((box, class_id, 0.9))
    assert [KINDS[k] for k in verdicts.kind] == [kind]
    assert verdicts.missed.tolist() == [missed]


def test_a_second_box_on_a_found_object_is_a_duplicate() -> None:
    verdicts = judged((BOX, 0, 0.5), ((0, 0, 100, 90), 0, 0.9))
    assert [KINDS[k] for k in verdicts.kind] == ["hit", "duplicate"]
    assert verdicts.scores.tolist() == pytest.approx([0.9, 0.5])
    assert verdicts.truth.tolist() == [0, 0]


def test_a_detection_in_a_crowd_is_ignored() -> None:
    verdicts = judged(((10, 10, 30, 30), 0, 0.9), crowd=(True,))
    assert verdicts.ignored.tolist() == [True]
    assert price(verdicts).count["all_false"] == 0


def test_putting_a_wrong_class_right_is_worth_the_ap_that_it_costs() -> None:
    costs = price(judged((BOX, 1, 0.9)))
    assert (costs.ap, costs.cost["class"], costs.count["class"]) == (0.0, pytest.approx(1.0), 1)
    assert costs.cost["location"] == costs.cost["background"] == 0


def test_a_set_without_anything_has_no_errors() -> None:
    costs = price(judged(truth=(), classes=(), crowd=()))
    assert costs.ap == 0
    assert set(costs.count.values()) == {0}


@pytest.mark.parametrize("case", list(TIDECV))
def test_the_costs_of_planted_errors_are_those_of_tidecv(case: tuple[int, int, int, int]) -> None:
    seed, images, most, strays = case
    costs = price(judge(make_evaluator(seed, images=images, most=most, strays=strays)))
    assert costs.cost | {"AP": costs.ap} == pytest.approx(TIDECV[case], abs=1e-6)
    assert min(costs.count.values()) > 0


def test_only_the_100_best_detections_of_an_image_are_judged() -> None:
    rows = [(BOX, 0, score) for score in np.linspace(0.1, 0.9, 130)]
    verdicts = judged(*rows)
    assert len(verdicts.kind) == 100
    assert verdicts.scores.min() == pytest.approx(0.1 + 0.8 * 30 / 129)
