"""`boxwright data`, from the command line to the files."""

import json
import shutil
from pathlib import Path

import pytest
from support.fixtures import Command

from boxwright.data.formats import find_layout, read_records
from boxwright.data.synthetic import generate_scenes
from boxwright.tasks.data import split_set


@pytest.fixture
def place(tmp_path: Path) -> Path:
    generate_scenes(tmp_path / "set", images=6, seed=2, size_hw=(64, 64), classes=["circle", "star"])
    return tmp_path / "set"


def test_check_names_a_fault_and_ends_with_the_code_for_data(boxwright: Command, place: Path, tmp_path: Path) -> None:
    assert boxwright("data", "check", str(place)).code == 0
    (place / "images/000002.jpg").write_bytes(b"")
    done = boxwright("data", "check", str(place), "--report", str(tmp_path / "found.json"))
    assert done.code == 3
    assert "error empty-file: 1" in done.out
    assert json.loads((tmp_path / "found.json").read_text())["counts"]["empty-file"] == 1


def test_stats_come_as_text_and_as_json(boxwright: Command, place: Path) -> None:
    assert "6 images" in boxwright("data", "stats", str(place)).out
    done = boxwright("data", "stats", str(place), "--json")
    assert [item["name"] for item in json.loads(done.out)["classes"]] == ["circle", "star"]


def test_a_set_is_divided_and_each_part_converted(boxwright: Command, place: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    done = boxwright("data", "split", str(place), str(parts), "--val", "0.3", "--json")
    counts = json.loads(done.out)
    assert sum(counts.values()) == 6
    assert boxwright("data", "convert", str(parts), str(tmp_path / "yolo"), "--to", "yolo", "--link").code == 0
    assert find_layout(tmp_path / "yolo").splits == ("train", "val")
    assert len(read_records(tmp_path / "yolo", split="val")) == counts["val"]
    assert boxwright("data", "split", str(parts), str(tmp_path / "x")).code == 2
    assert boxwright("data", "convert", str(place), str(parts), "--to", "voc").code == 2


def test_writing_a_set_reports_each_image(place: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    counts = split_set(place, tmp_path / "parts", val=0.5, progress=lambda *report: seen.append(report))
    assert seen == [(f"Writing {part}", i + 1, count) for part, count in counts.items() for i in range(count)]


def test_preview_draws_as_many_pictures_as_batches(boxwright: Command, place: Path, tmp_path: Path) -> None:
    done = boxwright(
        "data", "preview", str(place), "--out", str(tmp_path / "p"), "--size", "64", "-b", "3", "--batches", "2"
    )
    assert done.out.split() == [str(tmp_path / f"p/batch_{n}.jpg") for n in range(2)]
    assert all(Path(name).read_bytes().startswith(b"\xff\xd8") for name in done.out.split())
    assert boxwright("data", "preview", str(place), "--out", str(tmp_path / "p"), "--size", "64").code == 2


def test_files_outside_of_a_set_are_named_and_read_only_with_permission(
    boxwright: Command, place: Path, tmp_path: Path
) -> None:
    shutil.copy(place / "images/000001.jpg", tmp_path / "far.jpg")
    values = json.loads((place / "instances.json").read_text())
    values["images"][1]["file_name"] = f"{tmp_path}/far.jpg"
    (place / "instances.json").write_text(json.dumps(values))
    done = boxwright("data", "check", str(place))
    assert (done.code, "error outside-folder: 1" in done.out) == (3, True)
    for verb in ("convert", "split"):
        words = ("data", verb, str(place), str(tmp_path / verb), "--to", "coco")
        done = boxwright(*words)
        assert done.code == 3
        assert "far.jpg', which is outside of the set's folder" in done.err
        assert "--allow-outside" in done.err
        assert not (tmp_path / verb).exists()
        assert boxwright(*words, "--allow-outside").code == 0
    assert boxwright("data", "stats", str(place)).code == 3
    assert boxwright("data", "stats", str(place), "--allow-outside").code == 0


def test_cache_shows_what_is_kept_and_removes_it(
    boxwright: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path))
    (tmp_path / "tiles").mkdir()
    (tmp_path / "tiles" / "one.tiles").write_bytes(bytes(2_500_000))
    assert "resized images: 2.5 MB in 1 files" in boxwright("data", "cache").out
    removed = json.loads(boxwright("data", "cache", "--clear", "--json").out)
    assert {cache["name"]: cache["files"] for cache in removed if cache["files"]} == {"tiles": 1}
    assert not (tmp_path / "tiles" / "one.tiles").exists()
