"""Labels that were read before are mapped, and are never those of other files."""

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.records import differences

from boxwright.core.errors import DataError
from boxwright.data.caches import clear_caches
from boxwright.data.formats import Fault, read_records, write_records
from boxwright.data.formats.base import Format
from boxwright.data.formats.coco import read_coco
from boxwright.data.label_cache import FRESH_NS, cached_file, cached_files
from boxwright.data.packed import map_records, store_records
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes

IMAGES, BOXES = 40, 6000
FILLING = "} , {" * 3 + "-" * 900  # what looks like the end of an object, in every annotation: 6 MB in all


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of packed labels, which is this test's own."""
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "labels"


def large_set(folder: Path, change: Callable[[dict[str, Any]], None] = lambda values: None) -> Path:
    rng = np.random.default_rng(3)
    values: dict[str, Any] = {
        "images": [{"id": 900 - n, "file_name": f"{n}.jpg", "height": 48, "width": 64} for n in range(IMAGES)],
        "annotations": [
            {"segmentation": {"counts": FILLING, "size": [{}, {}]}, "id": n, "image_id": 900 - owner,
             "category_id": n % 3 * 10, "bbox": rng.uniform(0, 20, 4).round(2).tolist(), "iscrowd": n % 2,
             "area": n / 8, "extra": [{"a": 1}, {"b": 2}]}
            for n, owner in enumerate(rng.integers(0, IMAGES, BOXES).tolist())
        ],
        "categories": [{"id": 20, "name": "c"}, {"id": 0, "name": "a"}, {"id": 10, "name": "b"}],
    }  # fmt: skip
    change(values)
    folder.mkdir(parents=True, exist_ok=True)
    for image in values["images"]:
        (folder / image["file_name"]).touch()
    file = folder / "instances.json"
    file.write_text(json.dumps(values))
    return file


def one_box(name: str) -> Records:
    return Records.from_lists(root="", paths=["7.jpg"], boxes_xyxy=[[1, 2, 3, 4]], class_ids=[0], names=[name])


def test_a_large_json_is_read_in_pieces_like_a_small_one_at_once(tmp_path: Path) -> None:
    def spoil_one(values: dict[str, Any]) -> None:
        values["annotations"][17]["area"] = None
        values["annotations"][17]["note"] = float("nan")  # only Python's own parser takes it

    records = read_coco(large_set(tmp_path / "a", lambda values: values["annotations"][17].update(area=None)))
    untyped = read_coco(large_set(tmp_path / "b", spoil_one))
    assert len(records.boxes_xyxy) == BOXES
    assert records.image_ids.tolist() == [900 - n for n in range(IMAGES)]
    assert {line for line in differences(records, untyped) if "root" not in line} == set()
    assert records.path(39) == tmp_path / "a" / "39.jpg"


def test_what_is_unusual_in_a_large_json_is_read_and_what_is_wrong_is_named(tmp_path: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        rows = values["annotations"]
        rows[5]["image_id"] = float(rows[5]["image_id"])  # the same number
        rows[4000]["bbox"] = [1, 2, 3]
        rows[5999]["category_id"] = 11
        rows[6]["area"] = -2.0

    file = large_set(tmp_path, change)
    faults: list[Fault] = []
    records = read_coco(file, faults)
    assert len(records.boxes_xyxy) == BOXES - 2
    assert [fault.rule for fault in faults] == ["negative-area", "bad-label", "unknown-class"]
    assert "annotation 4000 has bbox [1, 2, 3]" in faults[1].message
    with pytest.raises(DataError, match="annotation 4000 has bbox"):
        read_coco(file)


def test_the_second_reading_uses_what_the_first_one_packed(tmp_path: Path, cache: Path) -> None:
    file = large_set(tmp_path / "set")
    first = read_coco(file)
    (packed,) = cache.glob("*.records")
    assert differences(read_coco(file), first) == []
    # Something untrue in the cache shows that it is used.
    store_records(one_box("untrue"), packed)
    assert read_coco(file).names == ("untrue",)
    assert {use.name for use in clear_caches() if use.files} == {"labels"}
    assert differences(read_coco(file), first) == []


def test_a_copied_set_is_known_by_its_content(tmp_path: Path, cache: Path) -> None:
    read_coco(large_set(tmp_path / "set"))
    (packed,) = cache.glob("*.records")
    store_records(one_box("untrue"), packed)
    copied = read_coco(large_set(tmp_path / "elsewhere"))
    assert copied.names == ("untrue",)
    assert copied.path(0) == tmp_path / "elsewhere" / "7.jpg"


def test_a_json_that_was_changed_within_the_clocks_resolution_is_read_again(tmp_path: Path) -> None:
    file = large_set(tmp_path)
    before = file.stat()
    assert read_coco(file).names == ("a", "b", "c")
    with file.open("r+b") as opened:
        at = file.read_bytes().rindex(b'"name": "c"')
        opened.seek(at)
        opened.write(b'"name": "d"')
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert read_coco(file).names == ("a", "b", "d")


@pytest.mark.parametrize("length", [0, 10, 300, 5000])
def test_half_a_packed_file_is_never_used(tmp_path: Path, cache: Path, length: int) -> None:
    file = large_set(tmp_path)
    first = read_coco(file)
    (packed,) = cache.glob("*.records")
    half = packed.read_bytes()[:length]
    packed.unlink()  # the first reading still maps it
    packed.write_bytes(half)
    assert map_records(packed) is None
    assert differences(read_coco(file), first) == []
    assert map_records(packed) is not None


def test_a_cache_that_cannot_be_written_is_named_and_the_labels_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").touch()
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "taken"))
    with caplog.at_level(logging.WARNING):
        assert len(read_coco(large_set(tmp_path / "set"))) == IMAGES
    assert "'" + str(tmp_path / "taken") in caplog.text


def test_labels_with_faults_are_not_kept(tmp_path: Path, cache: Path) -> None:
    file = large_set(tmp_path, lambda values: values["annotations"][9].update(bbox="none"))
    read_coco(file, [])
    assert list(cache.glob("*")) == []


def test_a_file_whose_times_are_trusted_is_not_hashed_again(tmp_path: Path, cache: Path) -> None:
    file = large_set(tmp_path)
    assert cached_file(file, lambda: one_box("first"), fresh_ns=0) is not None
    # The content is another one now; times, size and inode as the note says them would be the same.
    (note,) = cache.glob("*.stamp")
    stamp, name = json.loads(note.read_text())
    with file.open("r+b") as opened:
        opened.write(b"[")
    found = os.stat(file)
    note.write_text(json.dumps([[*stamp[:1], found.st_mtime_ns, found.st_ctime_ns, found.st_ino], name]))
    again = cached_file(file, lambda: one_box("second"), fresh_ns=0)
    assert again is not None
    assert again.names == ("first",)


def test_many_small_files_are_read_once_until_one_changes(tmp_path: Path) -> None:
    folder = tmp_path / "labels"
    folder.mkdir()
    for number in range(1000):
        (folder / f"{number}.txt").write_text("0")
    reads: list[int] = []

    def make() -> Records:
        reads.append(1)
        return one_box(f"reading {len(reads)}")

    def names(question: str = "") -> tuple[str, ...]:
        found = cached_files([folder], question, make, fresh_ns=0)
        assert found is not None
        return found.names

    assert names() == names() == ("reading 1",)
    assert names("another") == ("reading 2",)
    (folder / "500.txt").write_text("1")
    assert names() == ("reading 3",)
    (folder / "7.txt").unlink()
    assert names() == ("reading 4",)
    assert cached_files([folder], "", make) is not None  # so fresh that their times are not trusted
    assert len(reads) == 5


@pytest.mark.parametrize("format", ["voc", "yolo"])
def test_folders_of_label_files_are_parsed_once(tmp_path: Path, cache: Path, format: Format) -> None:
    """More than a thousand files, whose times are trusted when they are two seconds old."""
    scenes = generate_scenes(tmp_path / "scenes", images=2, seed=1, size_hw=(64, 64))
    write_records(scenes.select([0, 1]), tmp_path / "set", format)
    labels = tmp_path / "set" / ("Annotations" if format == "voc" else "labels/train")
    images = tmp_path / "set" / ("JPEGImages" if format == "voc" else "images/train")
    for number in range(600):
        for place in (labels, images):
            source = min(place.iterdir())
            (place / f"more{number}{source.suffix}").hardlink_to(source)
    if format == "voc":
        (tmp_path / "set/ImageSets/Main/train.txt").unlink()

    def old_enough() -> bool:
        return max(file.stat().st_ctime_ns for file in labels.iterdir()) < time.time_ns() - FRESH_NS

    first = read_records(tmp_path / "set")
    assert len(first) == 602
    while not old_enough():
        threading.Event().wait(0.1)
    assert differences(read_records(tmp_path / "set"), first) == []
    (packed,) = cache.glob("*.records")
    store_records(one_box("untrue"), packed)
    assert read_records(tmp_path / "set").names == ("untrue",)
    (labels / f"more7{min(labels.iterdir()).suffix}").unlink()
    assert read_records(tmp_path / "set", faults=[]).names == first.names
