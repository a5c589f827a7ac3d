import io
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from support.shared import shared_path

from boxwright.data.check import CheckReport, Finding, check_data, check_records
from boxwright.data.formats import write_records
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes


@pytest.fixture
def clean(tmp_path: Path) -> Records:
    scenes = generate_scenes(tmp_path / "set", images=4, seed=6, size_hw=(80, 100), classes=["circle"])
    assert check_records(scenes).findings == ()
    return scenes


def only(report: CheckReport) -> Finding:
    (finding,) = report.findings
    return finding


def brief(report: CheckReport) -> list[tuple[str, str, int | None]]:
    return [(f.rule, f.image, f.index) for f in report.findings]


def turn(file: Path, orientation: int, size_hw: tuple[int, int] = (80, 100)) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = io.BytesIO()
    Image.fromarray(np.full((*size_hw, 3), orientation, np.uint8)).save(out, "JPEG", exif=exif)
    file.write_bytes(out.getvalue())


@pytest.mark.parametrize(
    ("spoil", "rule", "says"),
    [
        (lambda data: b"", "empty-file", "the file has 0 bytes."),
        (lambda data: data[: len(data) // 2], "truncated", "it is cut off after"),
        (lambda data: b"no image at all", "unreadable", "it is not an image"),
    ],
)
def test_a_file_that_is_no_image_is_found_and_named(
    clean: Records, spoil: Callable[[bytes], bytes], rule: str, says: str
) -> None:
    clean.path(2).write_bytes(spoil(clean.path(2).read_bytes()))
    finding = only(check_records(clean))
    assert (finding.rule, finding.severity, finding.image, finding.index) == (rule, "error", "000002.jpg", 2)
    assert finding.message.startswith(says)


def test_a_file_that_went_away_is_unreadable(clean: Records) -> None:
    clean.path(1).unlink()
    assert brief(check_records(clean)) == [("unreadable", "000001.jpg", 1)]


def test_an_image_that_the_labels_name_and_that_is_not_there_is_an_error(clean: Records) -> None:
    assert brief(check_records(replace(clean, missing=("gone.jpg",)))) == [("missing-image", "gone.jpg", None)]


def test_a_wrong_size_in_the_labels_is_an_error(clean: Records) -> None:
    sizes = clean.sizes_hw.copy()
    sizes[3] = (160, 200)
    finding = only(check_records(replace(clean, sizes_hw=sizes)))
    assert (finding.rule, finding.index) == ("wrong-size", 3)
    assert finding.message == "the labels say 200 by 160, the image is 100 by 80."
    sizes[3] = 0
    assert check_records(replace(clean, sizes_hw=sizes)).findings == ()


def with_box(records: Records, box: list[float], size_hw: tuple[int, int]) -> Records:
    """Return image 0 alone with one box."""
    return Records.from_lists(
        root=records.root, paths=["000000.jpg"], boxes_xyxy=[[box]], class_ids=[[0]], names=["x"], sizes_hw=[size_hw]
    )


@pytest.mark.parametrize("size_hw", [(100, 80), (0, 0)])
def test_a_turned_image_is_a_warning_that_says_what_happens(clean: Records, size_hw: tuple[int, int]) -> None:
    turn(clean.path(0), 6)
    finding = only(check_records(with_box(clean, [10, 10, 70, 95], size_hw)))
    assert (finding.rule, finding.severity) == ("exif-rotated", "warning")
    assert "orientation 6" in finding.message
    assert "displayed frame, 80 by 100" in finding.message


@pytest.mark.parametrize(
    ("box", "size_hw"),
    [
        # The box fits only the pixels as stored, 100 by 80; or the labels give that size.
        ([10, 10, 95, 70], (0, 0)),
        ([10, 10, 70, 70], (80, 100)),
    ],
)
def test_labels_in_the_stored_frame_of_a_turned_image_are_an_error(
    clean: Records, box: list[float], size_hw: tuple[int, int]
) -> None:
    turn(clean.path(0), 8)
    finding = only(check_records(with_box(clean, box, size_hw)))
    assert (finding.rule, finding.severity) == ("exif-frame", "error")
    assert "EXIF turns it to 80 by 100, but the labels are in the stored frame, 100 by 80" in finding.message


def test_an_image_turned_upside_down_keeps_its_size(clean: Records) -> None:
    turn(clean.path(0), 3)
    assert brief(check_records(with_box(clean, [10, 10, 95, 70], (80, 100)))) == [("exif-rotated", "000000.jpg", 0)]


def test_images_of_the_same_content_are_told_with_their_boxes(clean: Records) -> None:
    shutil.copyfile(clean.path(1), clean.path(3))
    finding = only(check_records(clean))
    assert (finding.rule, finding.severity, finding.index) == ("duplicate-image", "warning", 3)
    assert finding.message == "it has the same content as '000001.jpg', but other boxes."


def test_an_image_listed_twice_is_an_error(clean: Records) -> None:
    finding = only(check_records(clean.select([0, 1, 2, 0])))
    assert (finding.rule, finding.image, finding.index) == ("listed-twice", "000000.jpg", 3)


def test_an_image_in_both_parts_is_an_error_in_the_checked_one(clean: Records, tmp_path: Path) -> None:
    val = generate_scenes(tmp_path / "val", images=3, seed=7, size_hw=(80, 100), classes=["circle"])
    assert check_records(clean, other=val).findings == ()
    shutil.copyfile(clean.path(2), val.path(1))
    val.path(0).unlink()
    finding = only(check_records(clean, other=val))
    assert (finding.rule, finding.severity, finding.index) == ("leaked-image", "error", 2)
    assert finding.message == "the other part of the set has it too, as '000001.jpg'."


def test_progress_counts_every_image(clean: Records) -> None:
    seen: list[tuple[int, int]] = []
    check_records(clean, progress=lambda done, whole: seen.append((done, whole)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_other_formats_than_jpeg_are_checked_too(clean: Records) -> None:
    for name in ("a.png", "b.webp", "c.bmp"):
        (clean.root / name).write_bytes(cv2.imencode(name[1:], np.zeros((80, 100, 3), np.uint8))[1].tobytes())
    records = Records.from_lists(
        root=clean.root, paths=["a.png", "b.webp", "c.bmp"], boxes_xyxy=[[[0, 0, 9, 9]]] * 3, class_ids=[[0]] * 3,
        names=["x"], sizes_hw=[(80, 100)] * 3,
    )  # fmt: skip
    assert check_records(records).findings == ()
    data = records.path(0).read_bytes()
    records.path(0).write_bytes(data[:-20])
    assert brief(check_records(records)) == [("truncated", "a.png", 0)]


def test_the_real_sets_have_the_faults_they_are_known_for() -> None:
    reports = check_data(shared_path("data/bccd"))
    assert {part: report.images for part, report in reports.items()} == {"train": 205, "val": 87, "test": 72}
    assert [str(f) for report in reports.values() for f in report.findings] == [
        "BloodImage_00343.jpg box 3: the 'RBC' at (181, 329, 181, 329) is 0 by 0 pixels.",
        "BloodImage_00338.jpg box 12: the 'RBC' at (504, 337, 504, 337) is 0 by 0 pixels.",
    ]
    assert check_data(shared_path("data/coco_train_mini"))["train"].findings == ()


def test_parts_of_a_set_are_compared_pair_by_pair(tmp_path: Path, clean: Records) -> None:
    root = tmp_path / "parts"
    for split, index in (("train", [0, 1]), ("val", [1, 2]), ("test", [2, 0, 3])):
        write_records(clean.select(index), root, "yolo", split=split)
    reports = check_data(root)
    assert {part: brief(report) for part, report in reports.items()} == {
        "train": [("leaked-image", "000001.jpg", 1)],
        "val": [("leaked-image", "000002.jpg", 1)],
        "test": [("leaked-image", "000000.jpg", 1)],
    }
    assert list(check_data(root, split="val")) == ["val"]
