"""The analysis as a whole, and suspected faults of labels."""

import gzip
import json

import numpy as np
import pytest
from support.coco_results import read_results
from support.crowds import NAMES, make_evaluator
from support.label_faults import are_planted, plant_faults
from support.shared import shared_path

from boxwright.core.types import Detections
from boxwright.evaluation.analysis import analyse
from boxwright.evaluation.coco import CocoEvaluator
from boxwright.evaluation.errors import judge
from boxwright.evaluation.suspects import find_suspects

SIZE_HW = (400, 400)
A, B, C = (0, 0, 60, 60), (100, 100, 180, 180), (200, 200, 300, 300)


def one_image(truth: list, classes: list, rows: list[tuple]) -> CocoEvaluator:
    evaluator = CocoEvaluator(NAMES)
    found = Detections(
        boxes_xyxy=[row[0] for row in rows],
        class_ids=[row[1] for row in rows],
        scores=[row[2] for row in rows],
        names=NAMES,
        size_hw=SIZE_HW,
    )
    evaluator.add(image_id=7, size_hw=SIZE_HW, truth_boxes_xyxy=truth, truth_class_ids=classes, detections=found)
    return evaluator


def test_the_analysis_is_plain_json_with_every_part_and_the_evaluators_own_numbers() -> None:
    evaluator = make_evaluator(1)
    analysis = analyse(evaluator)
    values = json.loads(json.dumps(analysis.to_dict(), allow_nan=False))
    assert {k: values[k] for k in ("AP", "AP50", "AR100")} == {
        k: getattr(evaluator.evaluate(), k) for k in ("AP", "AP50", "AR100")
    }
    assert set(values["errors"]) >= {"class", "location", "both", "duplicate", "background", "missed"}
    assert list(values["curves"]) == ["all", *(f"class {name}" for name in NAMES)]
    assert len(values["confusion"]["matrix"]) == len(NAMES) + 1
    assert sum(part["truths"] for part in values["crowding"]) == values["truths"]
    assert sum(part["truths"] for part in values["aspect"]) == values["truths"]
    assert sum(b["count"] for b in values["calibration"]["bins"]) == values["calibration"]["num_detections"] > 0


def test_the_three_worst_errors_are_the_most_expensive_ones() -> None:
    analysis = analyse(make_evaluator(0))
    lines = analysis.worst()
    assert [line.split(":")[0] for line in lines] == [
        "boxes where there is nothing", "the right class, but misplaced", "the right place, the wrong class",
    ]  # fmt: skip
    assert lines[0].startswith("boxes where there is nothing: 10.2 AP50 points (138 boxes), mostly ")


def test_a_perfect_detector_has_nothing_to_tell() -> None:
    analysis = analyse(one_image([A, B], [0, 1], [(A, 0, 0.9), (B, 1, 0.8)]))
    assert analysis.worst() == []
    assert analysis.suspects == []
    assert analysis.threshold == pytest.approx(0.8)


def test_ap_of_wide_objects_counts_neither_other_objects_nor_boxes_of_other_shapes() -> None:
    wide, tall = (0, 0, 200, 50), (300, 0, 350, 200)
    found = [(wide, 0, 0.5), ((210, 210, 250, 380), 0, 0.9)]
    parts = {part.name: part for part in analyse(one_image([wide, tall], [0, 0], found)).aspects}
    assert (parts["wide (above 2)"].AP, parts["wide (above 2)"].truths) == (pytest.approx(1), 1)
    assert (parts["tall (below 0.5)"].AP, parts["even (0.5 to 2)"].AP) == (0.0, None)


def test_each_kind_of_label_fault_is_suspected() -> None:
    shifted, twin = (125, 125, 205, 205), (200, 200, 300, 301)
    found = [(A, 0, 0.9), (B, 1, 0.8), (C, 2, 0.7), ((320, 320, 390, 390), 3, 0.6)]
    analysis = analyse(one_image([A, shifted, C, twin], [1, 1, 2, 2], found))
    assert {suspect.fault: round(suspect.confidence, 1) for suspect in analysis.suspects} == {
        "double": 1.0,
        "wrong class": 0.9,
        "shifted": 1.0,
        "missing": 0.6,
    }
    told = {entry["fault"]: entry for entry in analysis.to_dict()["suspects"]}
    assert told["wrong class"]["truth"] == {"class": "b", "box_xyxy": [0, 0, 60, 60]}
    assert told["wrong class"]["detection"]["class"] == "a"
    assert "truth" not in told["missing"]
    assert told["missing"]["image_id"] == 7


def test_no_suspect_stands_on_a_weak_detection_or_twice_on_one_object() -> None:
    found = [(A, 0, 0.29), (B, 0, 0.9), ((102, 100, 180, 180), 0, 0.8)]
    analysis = analyse(one_image([B], [1], found))
    assert [(s.fault, round(s.confidence, 1)) for s in analysis.suspects] == [("wrong class", 0.9)]


def test_a_moved_label_is_suspected_but_not_one_of_another_shape() -> None:
    moved, part = (60, 60, 140, 140), (100, 100, 180, 140)
    for label, faults in ((moved, ["shifted"]), (part, [])):
        analysis = analyse(one_image([label], [1], [((100, 100, 180, 180), 1, 0.4)]))
        assert [suspect.fault for suspect in analysis.suspects] == faults


@pytest.mark.parametrize("seed", [0, 1])
def test_most_of_the_first_50_suspects_are_planted_faults_in_coco_labels(seed: int) -> None:
    folder = shared_path("data/coco_val300")
    results = gzip.decompress((folder / "reference_detections.json.gz").read_bytes())
    state, planted = plant_faults(read_results(folder / "instances.json", results).state(), seed)
    v = judge(CocoEvaluator.from_state(state))
    first = find_suspects(v)[:50]
    boxes = [v.boxes_xywh[s.detection] if s.detection >= 0 else v.truth_boxes_xywh[s.truth] for s in first]
    assert are_planted(planted, v.image_ids[[s.image for s in first]], np.array(boxes)).sum() >= 35
