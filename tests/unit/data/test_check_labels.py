import json
from pathlib import Path

import pytest

from boxwright.core.boxes import area_xyxy
from boxwright.core.errors import DataError
from boxwright.data.check import RULES, check_data
from boxwright.data.formats import read_records, write_records
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes


@pytest.fixture
def clean(tmp_path: Path) -> Records:
    return generate_scenes(tmp_path / "set", images=4, seed=6, size_hw=(80, 100), classes=["circle"])


def brief(path: Path) -> list[tuple[str, str, int | None]]:
    """Return the findings in the only part of a set, and hold them to the table of rules."""
    (report,) = check_data(path).values()
    assert {f.severity for f in report.findings} <= {RULES[f.rule][0] for f in report.findings}
    return [(f.rule, f.image, f.index) for f in report.findings]


@pytest.mark.parametrize("format", ["coco", "voc", "yolo"])
def test_a_clean_set_has_no_faults_in_any_format(tmp_path: Path, clean: Records, format: str) -> None:
    write_records(clean, tmp_path / "new", format)  # type: ignore[arg-type]
    assert brief(tmp_path / "new") == []


def test_faults_in_a_json_are_named(tmp_path: Path, clean: Records) -> None:
    write_records(clean, tmp_path / "new", "coco")
    file = tmp_path / "new/annotations/instances_train.json"
    values = json.loads(file.read_text())
    values["annotations"][0]["category_id"] = 55
    values["annotations"][-1]["bbox"] = [1, 2, "wide", 4]
    values["images"].append({"id": 99, "file_name": "gone.jpg"})
    file.write_text(json.dumps(values))
    (tmp_path / "new/images/train/extra.jpg").write_bytes(clean.path(0).read_bytes())
    assert brief(tmp_path / "new") == [
        ("bad-label", "000003.jpg", 3),
        ("unknown-class", "000000.jpg", 0),
        ("missing-image", "gone.jpg", None),
        ("unlabelled-image", "extra.jpg", None),
    ]


def test_faults_in_xml_files_are_named(tmp_path: Path, clean: Records) -> None:
    write_records(clean, tmp_path / "new", "voc")
    labels, images = tmp_path / "new/Annotations", tmp_path / "new/JPEGImages"
    (labels / "000000.xml").write_text("<annotation>")
    text = (labels / "000001.xml").read_text()
    (labels / "000001.xml").write_text(text.replace("circle", "cirle", 1))
    (images / "000002.jpg").unlink()
    (labels / "000003.xml").unlink()
    assert brief(tmp_path / "new") == [
        ("bad-label", "000000.jpg", 0),
        ("unknown-class", "000001.jpg", 1),
        ("missing-image", "000002.jpg", None),
        ("unlabelled-image", "000003.jpg", None),
    ]


def test_faults_in_text_files_are_named(tmp_path: Path, clean: Records) -> None:
    write_records(clean, tmp_path / "new", "yolo")
    labels, images = tmp_path / "new/labels/train", tmp_path / "new/images/train"
    (labels / "000000.txt").write_text("circle 0.5 0.5 0.1 0.1")
    (labels / "000001.txt").write_text("7 0.5 0.5 0.1 0.1\n0 0.5 0.5 0.1 0.1")
    (images / "000002.jpg").unlink()
    (labels / "000003.txt").unlink()
    assert brief(tmp_path / "new") == [
        ("bad-label", "000000.jpg", 0),
        ("unknown-class", "000001.jpg", 1),
        ("missing-image", "../../labels/train/000002.txt", None),
        ("unlabelled-image", "000003.jpg", 2),
    ]


def test_an_image_that_can_not_be_read_is_one_fault_in_a_yolo_set(
    tmp_path: Path, clean: Records, caplog: pytest.LogCaptureFixture
) -> None:
    write_records(clean, tmp_path / "new", "yolo")
    (tmp_path / "new/images/train/000001.jpg").write_bytes(b"")
    assert brief(tmp_path / "new") == [("empty-file", "000001.jpg", 1)]
    assert "1 images can't be read" in caplog.text


def test_every_rule_says_what_it_finds_and_errors_come_first() -> None:
    severities = [severity for severity, _ in RULES.values()]
    assert severities == sorted(severities)
    assert all(words for _, words in RULES.values())


@pytest.mark.parametrize(("format", "file"), [("voc", "ImageSets/Main/train.txt"), ("yolo", "train.txt")])
def test_a_list_that_has_an_image_twice_is_named(tmp_path: Path, clean: Records, format: str, file: str) -> None:
    # Out of order, so that YOLO needs a list too.
    write_records(clean.select([2, 0, 1]), tmp_path / "new", format)  # type: ignore[arg-type]
    lines = (tmp_path / "new" / file).read_text().splitlines()
    (tmp_path / "new" / file).write_text("\n".join([*lines, lines[0]]))
    assert brief(tmp_path / "new") == [("listed-twice", "000002.jpg", 3)]


def test_negative_areas_and_classes_of_one_name_are_errors(tmp_path: Path, clean: Records) -> None:
    write_records(clean, tmp_path / "new", "coco")
    file = tmp_path / "new/annotations/instances_train.json"
    values = json.loads(file.read_text())
    values["annotations"][0]["area"] = -5
    values["categories"].append({"id": 2, "name": "circle"})
    values["annotations"][0]["category_id"] = 2
    file.write_text(json.dumps(values))
    (report,) = check_data(tmp_path / "new").values()
    assert [(f.rule, f.image) for f in report.errors] == [("negative-area", "000000.jpg"), ("duplicate-class", "")]
    assert report.bad_names == ("000000.jpg",)
    # The area of the box takes its place.
    assert read_records(tmp_path / "new").areas_of(0)[0] == area_xyxy(clean.boxes(0))[0]


def test_a_box_without_an_area_of_its_own_may_be_too_large(tmp_path: Path, clean: Records) -> None:
    write_records(clean, tmp_path / "new", "coco")
    file = tmp_path / "new/annotations/instances_train.json"
    values = json.loads(file.read_text())
    del values["annotations"][0]["area"]
    values["annotations"][0]["bbox"] = [0, 0, 1e9, 1e9]
    file.write_text(json.dumps(values))
    with pytest.raises(DataError, match=r"annotation 1 has bbox .* too large"):
        read_records(tmp_path / "new")
    assert brief(tmp_path / "new") == [("bad-label", "000000.jpg", 0)]


def test_a_crowd_is_0_or_1(tmp_path: Path, clean: Records) -> None:
    write_records(clean, tmp_path / "new", "coco")
    file = tmp_path / "new/annotations/instances_train.json"
    values = json.loads(file.read_text())
    for annotation, crowd in zip(values["annotations"], ["0", 1, None, True], strict=False):
        annotation["iscrowd"] = crowd
    file.write_text(json.dumps(values))
    assert read_records(tmp_path / "new").crowd.tolist()[:4] == [False, True, False, True]
    for wrong in ("no", 2, [1], -1):
        values["annotations"][0]["iscrowd"] = wrong
        file.write_text(json.dumps(values))
        with pytest.raises(DataError, match=r"has iscrowd .* where 0 or 1 should be"):
            read_records(tmp_path / "new")
        assert brief(tmp_path / "new")[0] == ("bad-label", "000000.jpg", 0)


def test_very_many_equal_lines_are_read_and_reported_at_once(tmp_path: Path, clean: Records) -> None:
    write_records(clean, tmp_path / "new", "yolo")
    (tmp_path / "new/labels/train/000000.txt").write_text("0 0.5 0.5 0.1 0.1\n" * 200_000)
    (report,) = check_data(tmp_path / "new").values()
    assert report.counts()["duplicate-box"] == 1
    assert "199999 times" in next(f.message for f in report.findings if f.rule == "duplicate-box")
