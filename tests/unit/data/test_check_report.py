import json
from pathlib import Path

import pytest

from boxwright.core.errors import DataError, UsageError
from boxwright.data.check import CheckReport, Finding, check_records, usable
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes


@pytest.fixture
def records(tmp_path: Path) -> Records:
    """Ten images, of which number 3 is empty and number 7 cut off."""
    scenes = generate_scenes(tmp_path / "set", images=10, seed=6, size_hw=(64, 64), classes=["circle"])
    scenes.path(3).write_bytes(b"")
    scenes.path(7).write_bytes(scenes.path(7).read_bytes()[:300])
    return scenes


def test_bad_images_are_left_out_and_named(records: Records) -> None:
    report = check_records(records)
    good = usable(records, report, threshold=0.2)
    assert report.bad_names == ("000003.jpg", "000007.jpg")
    assert len(good) == 8
    assert report.bad_images() == [3, 7]
    assert check_records(good).ok


def test_more_errors_than_the_threshold_are_refused_with_the_place_of_the_report(
    tmp_path: Path, records: Records
) -> None:
    report = check_records(records)
    assert report.error_fraction == 0.2
    with pytest.raises(DataError, match=r"2 of 10 .*20\.0%.*10\.0%.*'000003\.jpg', '000007\.jpg'.*'run/check\.json'"):
        usable(records, report, threshold=0.1, report_path="run/check.json")


def test_a_clean_set_stays_as_it_is(records: Records) -> None:
    clean = records.select([0, 1])
    report = check_records(clean)
    assert usable(clean, report, threshold=0) is clean
    assert report.bad_names == ()


def test_a_missing_image_counts_as_an_error(records: Records) -> None:
    finding = Finding(rule="missing-image", image="x.jpg", message="gone.")
    report = CheckReport(root=str(records.root), images=11, checked=10, boxes=5, findings=(finding,))
    assert report.error_fraction == pytest.approx(1 / 11)
    assert usable(records, report, threshold=0.1) is records
    assert report.bad_names == ("x.jpg",)


def test_a_set_of_bad_images_only_is_refused_at_any_threshold(records: Records) -> None:
    bad = records.select([3, 7])
    with pytest.raises(DataError, match=r"All 2 images .* 000003"):
        usable(bad, check_records(bad), threshold=1)


def test_a_report_of_another_set_or_a_wrong_threshold_is_refused(records: Records) -> None:
    report = check_records(records)
    with pytest.raises(UsageError, match=r"10 images .* 1 in"):
        usable(records.select([0]), report)
    with pytest.raises(UsageError, match="threshold=5"):
        usable(records, report, threshold=5)


def test_the_report_as_text_and_json(tmp_path: Path, records: Records) -> None:
    extra = tuple(
        Finding(rule="tiny-box", image=f"{i}.jpg", index=i, box=i, message="is small.") for i in range(7)
    )  # fmt: skip
    report = CheckReport(
        root="r", images=10, checked=10, boxes=20, findings=(*check_records(records).findings, *extra)
    )  # fmt: skip
    assert report.summary() == "10 images with 20 boxes: 2 errors in 2 images, 7 warnings."
    assert report.counts() == {"empty-file": 1, "truncated": 1, "tiny-box": 7}
    lines = report.lines(limit=2)
    assert lines[1:3] == ["error empty-file: 1", "  000003.jpg: the file has 0 bytes."]
    assert lines[-4:] == ["warning tiny-box: 7", "  0.jpg box 0: is small.", "  1.jpg box 1: is small.", "  and 5 more"]
    report.save(tmp_path / "run/check.json")
    values = json.loads((tmp_path / "run/check.json").read_text())
    assert (values["errors"], values["warnings"], values["error_fraction"]) == (2, 7, 0.2)
    assert values["findings"][0] == {
        "rule": "empty-file", "severity": "error", "image": "000003.jpg", "index": 3, "box": None,
        "message": "the file has 0 bytes.",
    }  # fmt: skip


def test_a_report_that_can_not_be_saved_says_why(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    report = CheckReport(root="r", images=0, checked=0, boxes=0)
    with pytest.raises(DataError, match=r"check\.json': (Not a directory|File exists)"):
        report.save(tmp_path / "taken/check.json")
