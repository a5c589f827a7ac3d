from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boxwright.data.check import RULES, CheckReport, Finding, check_records
from boxwright.data.check.rules import MOST_BOXES
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes


@pytest.fixture
def clean(tmp_path: Path) -> Records:
    """Three images of 100 by 80 pixels, two boxes each."""
    scenes = generate_scenes(tmp_path, images=3, seed=6, size_hw=(80, 100), classes=["circle", "star"])
    return Records.from_lists(
        root=scenes.root,
        paths=[scenes.relative_path(i) for i in range(3)],
        boxes_xyxy=[[[10, 10, 30, 30], [0, 0, 100, 80]]] * 3,
        class_ids=[[0, 1]] * 3,
        names=scenes.names,
        sizes_hw=[(80, 100)] * 3,
    )


def planted(records: Records, *boxes: Any) -> Records:
    """Return the set with other boxes of class 0 in image 1, before its last box."""
    lists = [records.boxes(i).tolist() for i in range(3)]
    lists[1] = [*boxes, lists[1][1]]
    return Records.from_lists(
        root=records.root,
        paths=[records.relative_path(i) for i in range(3)],
        boxes_xyxy=lists,
        class_ids=[[0] * (len(boxes) - 1) + [1] for boxes in lists],
        names=records.names,
        sizes_hw=[(80, 100)] * 3,
    )


def brief(report: CheckReport) -> list[tuple[str, int | None, int | None]]:
    return [(f.rule, f.index, f.box) for f in report.findings]


def only(report: CheckReport) -> Finding:
    (finding,) = report.findings
    return finding


def test_a_clean_set_gives_nothing(clean: Records) -> None:
    report = check_records(clean)
    assert report.findings == ()
    assert report.summary() == "3 images with 6 boxes: nothing wrong."


@pytest.mark.parametrize(
    ("box", "rule", "says"),
    [
        (
            [10, 10, float("nan"), 30],
            "non-finite",
            "'circle' at (10, 10, nan, 30) has corners that are not finite numbers.",
        ),
        ([float("-inf"), 10, float("inf"), 30], "non-finite", "at (-inf, 10, inf, 30)"),
        ([10, 10, 10, 30], "degenerate-box", "at (10, 10, 10, 30) is 0 by 20 pixels."),
        ([30, 30, 10, 50], "degenerate-box", "is -20 by 20 pixels."),
        ([10, 10, 10.5, 30], "tiny-box", "is 0.5 by 20 pixels."),
        ([101, 10, 130, 30], "box-outside", "is outside of the image, 100 by 80 pixels."),
        ([10, -40, 30, -20], "box-outside", "is outside of the image"),
        ([90, 10, 130, 30], "box-over-edge", "sticks 30 pixels out of the image, 100 by 80 pixels."),
        ([10, -1.5, 30, 30], "box-over-edge", "sticks 1.5 pixels out"),
    ],
)
def test_a_planted_box_is_found_and_named(clean: Records, box: list[float], rule: str, says: str) -> None:
    finding = only(check_records(planted(clean, [10, 10, 30, 30], box)))
    assert (finding.rule, finding.image, finding.index, finding.box) == (rule, "000001.jpg", 1, 1)
    assert says in finding.message
    assert finding.severity == RULES[rule][0]


def test_a_box_may_stick_out_by_a_pixel(clean: Records) -> None:
    assert check_records(planted(clean, [-1, -0.5, 101, 81])).findings == ()


def test_a_repeated_box_is_found_once_and_only_with_the_same_class(clean: Records) -> None:
    # The last box of the image is the whole frame as a star: the same corners as a circle are no repetition.
    report = check_records(planted(clean, [10, 10, 30, 30], [0, 0, 100, 80], [10, 10, 30, 30]))
    assert brief(report) == [("duplicate-box", 1, 2)]


def test_too_many_boxes_are_counted(clean: Records) -> None:
    boxes = [[x, y, x + 5, y + 5] for y in range(0, 70, 5) for x in range(0, 50, 5)]
    assert check_records(planted(clean, *boxes[: MOST_BOXES - 1])).findings == ()
    finding = only(check_records(planted(clean, *boxes[:MOST_BOXES])))
    assert (finding.rule, finding.index) == ("many-boxes", 1)
    assert "121 boxes" in finding.message
    assert "compile=true) uses at most 120" in finding.message


def test_a_class_without_a_box_is_told(clean: Records) -> None:
    finding = only(check_records(replace(clean, names=("circle", "star", "cross"), category_ids=(1, 2, 3))))
    assert (finding.rule, finding.index, finding.message) == ("unused-class", None, "The class 'cross' has no box.")


def test_boxes_are_judged_by_the_image_not_by_the_size_in_the_labels(clean: Records) -> None:
    records = replace(planted(clean, [110, 10, 130, 30]), sizes_hw=np.array([(80, 100), (80, 200), (80, 100)]))
    assert brief(check_records(records)) == [("wrong-size", 1, None), ("box-outside", 1, 0)]


def test_a_set_without_any_box_can_be_checked(clean: Records) -> None:
    empty = Records.from_lists(
        root=clean.root, paths=["000000.jpg"], boxes_xyxy=[[]], class_ids=[[]], names=["x"], sizes_hw=[(80, 100)]
    )
    assert brief(check_records(empty)) == [("unused-class", None, None)]
    assert check_records(empty.select([])).images == 0
