import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from boxwright.core.errors import DataError
from boxwright.data.fingerprint import compare, fingerprint, read_lock
from boxwright.data.formats import write_records
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return generate_scenes(tmp_path / "set", images=5, seed=1, size_hw=(64, 64), classes=["circle", "star"])


def test_a_lock_comes_back_and_an_unchanged_set_has_nothing_to_say(tmp_path: Path, records: Records) -> None:
    made = fingerprint(records)
    made.write_lock(tmp_path / "run/data.lock")
    assert read_lock(tmp_path / "run/data.lock") == made
    assert compare(made, fingerprint(records)) == []


def test_images_that_come_and_go_are_counted_and_named(records: Records) -> None:
    before = fingerprint(records.select([0, 1, 2]))
    assert compare(before, fingerprint(records.select([2, 3, 4]))) == [
        "2 images were added: '000003.jpg', '000004.jpg'.",
        "2 images are gone: '000000.jpg', '000001.jpg'.",
    ]


def test_a_changed_file_is_noticed_by_its_length(records: Records) -> None:
    before = fingerprint(records)
    with records.path(1).open("ab") as file:
        file.write(b"x")
    assert compare(before, fingerprint(records)) == ["1 image changed: '000001.jpg'."]
    records.path(2).unlink()
    assert compare(before, fingerprint(records)) == ["2 images changed: '000001.jpg', '000002.jpg'."]


def test_a_new_date_alone_is_said_as_such(records: Records) -> None:
    before = fingerprint(records)
    os.utime(records.path(3), ns=(1, 1))
    assert compare(before, fingerprint(records)) == ["1 image has a new date: '000003.jpg'. The length is the same."]


def test_changed_labels_are_noticed(records: Records) -> None:
    before = fingerprint(records)
    boxes = records.boxes_xyxy.copy()
    boxes[records.offsets[0]] += 1
    class_ids = records.class_ids.copy()
    class_ids[records.offsets[2]] ^= 1
    assert compare(before, fingerprint(replace(records, boxes_xyxy=boxes, class_ids=class_ids))) == [
        "2 images have other labels: '000000.jpg', '000002.jpg'."
    ]
    crowd = np.zeros(len(boxes), np.bool_)
    crowd[0] = True
    assert "1 image has other labels: '000000.jpg'." in compare(before, fingerprint(replace(records, crowd=crowd)))


def test_a_new_class_does_not_change_the_labels_of_the_others(records: Records) -> None:
    before = fingerprint(records)
    assert compare(before, fingerprint(records.with_names(["ant", "circle", "star"]))) == ["New classes: 'ant'."]
    assert compare(before, fingerprint(records.with_names(["star", "circle"]))) == ["The classes are in another order."]
    assert compare(before, fingerprint(replace(records, category_ids=(5, 9)))) == [
        "The category ids of the classes changed."
    ]
    after = fingerprint(records.with_names(["ant", "circle", "star"]))
    assert compare(after, fingerprint(records)) == ["Classes that are gone: 'ant'."]


def test_the_digest_is_the_same_for_a_copy_and_another_for_a_change(tmp_path: Path, records: Records) -> None:
    # The same set somewhere else, through another format: files with other dates, paths with another root.
    write_records(records, tmp_path / "copy", "voc")
    copy = Records.from_lists(
        root=tmp_path / "copy/JPEGImages",
        paths=[records.relative_path(i) for i in range(5)],
        boxes_xyxy=[records.boxes(i) for i in range(5)],
        class_ids=[records.class_ids_of(i) for i in range(5)],
        names=records.names,
        sizes_hw=[(64, 64)] * 5,
    )
    digest = fingerprint(records).digest
    assert fingerprint(copy).digest == digest
    assert fingerprint(records.select(range(4))).digest != digest
    assert fingerprint(replace(records, boxes_xyxy=records.boxes_xyxy + 1)).digest != digest
    assert fingerprint(replace(records, names=("a", "b"))).digest != digest


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "is not a data lock"), ("[]", "is not a data lock"), ('{"version": 1}', "is not a data lock"),
     ('{"version": 99}', "version 99")],
)  # fmt: skip
def test_a_file_that_is_no_lock_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "data.lock").write_text(text)
    with pytest.raises(DataError, match=says):
        read_lock(tmp_path / "data.lock")
    with pytest.raises(DataError, match=r"nowhere\.lock"):
        read_lock(tmp_path / "nowhere.lock")


def test_a_lock_has_one_line_for_each_image(tmp_path: Path, records: Records) -> None:
    fingerprint(records).write_lock(tmp_path / "data.lock")
    text = (tmp_path / "data.lock").read_text()
    assert sum(".jpg" in line for line in text.splitlines()) == 5
    assert json.loads(text)["digest"] == fingerprint(records).digest
