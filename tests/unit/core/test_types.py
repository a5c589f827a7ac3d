import csv
import io
import json
import sys
from typing import Any

import numpy as np
import pytest

from boxwright.core.errors import MissingDependencyError, UsageError
from boxwright.core.types import Detections, Precision

NAMES = ("Straße", "犬", 'a "b", c')


def detections(**changes: Any) -> Detections:
    values: dict[str, Any] = {
        "boxes_xyxy": [[10, 20, 30, 60], [-10, 0, 50, 200], [5, 5, 6, 7]],
        "scores": [0.9, 0.25, 0.5],
        "class_ids": [1, 0, 2],
        "names": NAMES,
        "size_hw": (100, 40),
    }
    return Detections(**(values | changes))


def none() -> Detections:
    return Detections.empty(names=NAMES, size_hw=(100, 40))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (32, Precision.FP32),
        ("fp32", Precision.FP32),
        ("32-true", Precision.FP32),
        ("double", Precision.FP64),
        ("16-mixed", Precision.FP16),
        ("half", Precision.FP16),
        (" BFloat16 ", Precision.BF16),
        ("bf16-mixed", Precision.BF16),
        ("bf16-true", Precision.BF16_TRUE),
        (8, Precision.INT8),
        (Precision.INT8, Precision.INT8),
    ],
)
def test_a_precision_has_many_spellings(value: Any, expected: Precision):
    assert Precision.parse(value) is expected


@pytest.mark.parametrize("precision", Precision)
def test_every_precision_reads_its_own_value(precision: Precision):
    assert Precision.parse(precision.value) is precision


def test_an_unknown_precision_is_refused():
    with pytest.raises(UsageError, match=r"Did you mean 'bf16'\? Choose from: 64, 32"):
        Precision.parse("bf17")


def test_arrays_take_their_types():
    found = detections()
    assert (found.boxes_xyxy.dtype, found.scores.dtype, found.class_ids.dtype) == (np.float32, np.float32, np.int64)
    assert (found.boxes_xyxy.shape, found.scores.shape, found.class_ids.shape) == ((3, 4), (3,), (3,))


def test_unequal_counts_are_refused():
    with pytest.raises(UsageError, match="3, 2, 3"):
        detections(scores=[0.1, 0.2])


@pytest.mark.parametrize("class_ids", [[0, 1, 3], [-1, 0, 0]])
def test_class_ids_without_a_name_are_refused(class_ids: list[int]):
    with pytest.raises(UsageError, match="but there are 3 names"):
        detections(class_ids=class_ids)


def test_iterating_gives_box_score_and_name():
    rows = [(box.tolist(), score, name) for box, score, name in detections()]
    assert rows[0] == ([10, 20, 30, 60], pytest.approx(0.9), "犬")
    assert detections().labels == ["犬", "Straße", 'a "b", c']
    assert list(none()) == []


@pytest.mark.parametrize(
    ("index", "class_ids"),
    [
        (slice(0, 2), [1, 0]),
        ([2, 0], [2, 1]),
        (np.array([True, False, True]), [1, 2]),
        ([False, True, False], [0]),
        ([], []),
    ],
)
def test_an_index_picks_detections(index: Any, class_ids: list[int]):
    picked = detections()[index]
    assert picked.class_ids.tolist() == class_ids
    assert len(picked) == len(picked.boxes_xyxy) == len(class_ids)
    assert (picked.names, picked.size_hw) == (NAMES, (100, 40))


@pytest.mark.parametrize(
    ("tests", "class_ids"),
    [
        ({}, [1, 0, 2]),
        ({"min_score": 0.5}, [1, 2]),
        ({"min_score": 0.95}, []),
        ({"classes": ["犬"]}, [1]),
        ({"classes": [2, "Straße"]}, [0, 2]),
        ({"classes": [np.int64(2)]}, [2]),
        ({"classes": []}, []),
        ({"min_side": 2}, [1, 0]),
        ({"min_side": 30}, [0]),
        ({"top": 2}, [1, 2]),
        ({"top": 1}, [1]),
        ({"top": 0}, []),
        ({"top": 9}, [1, 0, 2]),
        ({"min_score": 0.3, "classes": [0, 1], "top": 1}, [1]),
    ],
)
def test_a_filter_keeps_what_passes_every_test(tests: dict[str, Any], class_ids: list[int]):
    assert detections().filter(**tests).class_ids.tolist() == class_ids


def test_top_keeps_the_earlier_of_equal_scores():
    assert detections(scores=[0.5, 0.9, 0.5]).filter(top=2).class_ids.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ({"classes": ["Strasse"]}, r"Did you mean 'Straße'\? .*: Straße, 犬"),
        ({"classes": [3]}, "Class id 3 is outside 0 to 2"),
        ({"classes": [-1]}, "Class id -1 is outside 0 to 2"),
        ({"top": -1}, "top=-1"),
    ],
)
def test_a_filter_that_can_not_apply_is_refused(tests: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        detections().filter(**tests)


def test_clipping_cuts_boxes_to_the_image():
    found = detections()
    assert found.clip().boxes_xyxy.tolist() == [[10, 20, 30, 60], [0, 0, 40, 100], [5, 5, 6, 7]]
    assert found.boxes_xyxy[1].tolist() == [-10, 0, 50, 200]
    assert len(none().clip()) == 0


def test_json_keeps_letters_of_all_languages():
    text = detections().to_json()
    assert "犬" in text
    assert json.loads(text) == detections().to_list()
    assert json.loads(text)[0] == {"class": "犬", "class_id": 1, "score": 0.9, "box_xyxy": [10.0, 20.0, 30.0, 60.0]}


def test_csv_can_be_read_back():
    rows = list(csv.reader(io.StringIO(detections().to_csv())))
    assert rows[0] == ["class", "class_id", "score", "x1", "y1", "x2", "y2"]
    assert [row[0] for row in rows[1:]] == ["犬", "Straße", 'a "b", c']
    assert rows[2] == ["Straße", "0", "0.25", "-10.0", "0.0", "50.0", "200.0"]
    assert detections().to_csv(header=False) == detections().to_csv().split("\n", 1)[1]


def test_coco_boxes_are_corner_and_size():
    entries = detections().to_coco(image_id=7)
    assert entries[0] == {"image_id": 7, "category_id": 2, "bbox": [10.0, 20.0, 20.0, 40.0], "score": 0.9}
    assert [entry["category_id"] for entry in entries] == [2, 1, 3]
    assert json.loads(json.dumps(entries)) == entries


@pytest.mark.parametrize("category_ids", [[17, 3, 90], (17, 3, 90), np.array([17, 3, 90])])
def test_coco_categories_need_not_be_in_a_row(category_ids: Any):
    entries = detections().to_coco(image_id=7, category_ids=category_ids)
    assert [entry["category_id"] for entry in entries] == [3, 17, 90]
    assert type(entries[0]["category_id"]) is int


def test_coco_categories_must_be_one_for_each_name():
    with pytest.raises(UsageError, match="3 class names but 2 category ids"):
        detections().to_coco(image_id=7, category_ids=[1, 2])


def test_yolo_lines_are_parts_of_the_clipped_image():
    lines = detections().to_yolo_txt().splitlines()
    assert lines[0] == "1 0.500000 0.400000 0.500000 0.400000 0.900000"
    assert lines[1] == "0 0.500000 0.500000 1.000000 1.000000 0.250000"
    assert detections().to_yolo_txt(scores=False).splitlines()[1] == "0 0.500000 0.500000 1.000000 1.000000"


def test_supervision_gets_the_same_boxes():
    theirs = detections().to_supervision()
    assert theirs.xyxy.tolist() == detections().boxes_xyxy.tolist()
    assert theirs.confidence.tolist() == detections().scores.tolist()
    assert theirs.class_id.tolist() == [1, 0, 2]
    assert theirs.data["class_name"].tolist() == ["犬", "Straße", 'a "b", c']


def test_supervision_is_asked_for_by_name_when_it_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(MissingDependencyError, match="pip install supervision"):
        detections().to_supervision()


def test_no_detections_convert_to_nothing():
    assert none().to_list() == []
    assert none().to_json() == "[]"
    assert none().to_csv(header=False) == ""
    assert none().to_csv() == "class,class_id,score,x1,y1,x2,y2\n"
    assert none().to_coco(image_id=1) == []
    assert none().to_yolo_txt() == ""
    assert len(none().filter(min_score=0.1, classes=["犬"], min_side=1, top=3)) == 0


def test_no_detections_are_no_detections_for_supervision_too():
    theirs = none().to_supervision()
    assert theirs.is_empty()
    assert theirs.xyxy.shape == (0, 4)
    assert theirs.data["class_name"].dtype.kind == "U"


def test_a_single_class_may_be_given_as_a_plain_name() -> None:
    found = Detections(
        boxes_xyxy=np.zeros((2, 4), np.float32), scores=np.ones(2), class_ids=np.array([0, 1]),
        names=("person", "dog"), size_hw=(8, 8),
    )  # fmt: skip
    assert found.filter(classes="person").labels == ["person"]
    assert found.filter(classes=1).labels == ["dog"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_boxes_and_scores_that_json_has_no_numbers_for_are_refused(value: float) -> None:
    for boxes, scores in (([[0, 0, value, 1]], [0.5]), ([[0, 0, 1, 1]], [value])):
        with pytest.raises(UsageError, match="finite"):
            Detections(
                boxes_xyxy=np.array(boxes), scores=np.array(scores), class_ids=np.array([0]), names=("a",),
                size_hw=(8, 8),
            )  # fmt: skip


def test_csv_neutralises_a_class_name_that_a_spreadsheet_would_compute() -> None:
    found = Detections(
        boxes_xyxy=np.array([[-1, 0, 1, 1]]),
        scores=np.ones(1),
        class_ids=np.array([0]),
        names=("=1+1",),
        size_hw=(8, 8),
    )
    assert found.to_csv(header=False) == "'=1+1,0,1.0,-1.0,0.0,1.0,1.0\n"
