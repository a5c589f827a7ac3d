"""Sets that name files outside of their folder, and sets that hold other things than images."""

import json
import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from boxwright.core.errors import DataError
from boxwright.data.check import check_data
from boxwright.data.formats import Fault, read_records
from boxwright.data.records import Records
from boxwright.tasks.data import convert_set, split_set

SECRET = b"secret token\n"


def save_image(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(cv2.imencode(".png", np.zeros((20, 30, 3), np.uint8))[1].tobytes())
    return file


def save_coco(file: Path, *names: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    images = [{"id": n, "file_name": name, "height": 20, "width": 30} for n, name in enumerate(names)]
    file.write_text(json.dumps({"images": images, "annotations": [], "categories": [{"id": 1, "name": "a"}]}))
    return file


def names_of(records: Records) -> list[str]:
    return [records.relative_path(i) for i in range(len(records))]


def contents(folder: Path) -> set[bytes]:
    return {path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("named", ["set", "set/instances.json"])
@pytest.mark.parametrize("name", ["{}/private.png", "../../private.png", "x/../../../private.png"])
def test_a_coco_json_reads_nothing_outside_of_its_set(tmp_path: Path, named: str, name: str) -> None:
    save_image(tmp_path / "private.png")
    save_image(tmp_path / "set/images/a.png")
    save_coco(tmp_path / "set/instances.json", "a.png", name.format(tmp_path))
    with pytest.raises(DataError, match=r"private\.png', which is outside of .*--allow-outside"):
        read_records(tmp_path / named)
    faults: list[Fault] = []
    records = read_records(tmp_path / named, faults=faults)
    assert (names_of(records), records.missing) == (["a.png"], ())
    assert [fault.rule for fault in faults] == ["outside-folder"]
    assert len(read_records(tmp_path / named, allow_outside=True)) == 2
    with pytest.raises(DataError, match="outside of"):
        convert_set(tmp_path / named, tmp_path / "out", to="yolo")
    assert convert_set(tmp_path / named, tmp_path / "out", to="yolo", allow_outside=True) == {"train": 2}


@pytest.mark.parametrize(
    "name", ["{}/private/b.png", "../private/b.png", "../../private/b.png", "x/../../private/b.png"]
)
def test_folders_outside_of_a_set_are_not_even_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    save_image(tmp_path / "private/b.png")
    save_image(tmp_path / "set/images/a.png")
    save_coco(tmp_path / "set/instances.json", "a.png", name.format(tmp_path))
    listed = []
    real = os.listdir
    monkeypatch.setattr("os.listdir", lambda folder: (listed.append(os.path.realpath(folder)), real(folder))[1])
    assert names_of(read_records(tmp_path / "set", faults=[])) == ["a.png"]
    assert str(tmp_path / "set/images") in listed
    assert str(tmp_path / "private") not in listed


def test_the_folder_above_that_of_a_json_is_not_searched(tmp_path: Path) -> None:
    save_image(tmp_path / "Pictures/private.png")
    file = save_coco(tmp_path / "Downloads/set.json", "Pictures/private.png")
    with pytest.raises(DataError, match=r"None of the 1 images .*--allow-outside"):
        read_records(file)
    assert len(read_records(file, allow_outside=True)) == 1


def test_a_json_of_nothing_but_outside_images_is_told_so(tmp_path: Path) -> None:
    image = save_image(tmp_path / "elsewhere/a.png")
    save_coco(tmp_path / "set/instances.json", str(image))
    with pytest.raises(DataError, match="outside of"):
        read_records(tmp_path / "set")
    assert len(read_records(tmp_path / "set", allow_outside=True)) == 1


def test_paths_that_stay_inside_are_read(tmp_path: Path) -> None:
    """Relative to the json, absolute, through links, and beside the json's folder."""
    inside = save_image(tmp_path / "set/train/a.png")
    save_image(tmp_path / "disk/b.png")
    (tmp_path / "set/train/b.png").symlink_to(tmp_path / "disk/b.png")
    (tmp_path / "set/more").symlink_to(tmp_path / "disk")
    file = save_coco(
        tmp_path / "set/annotations/x.json", "../train/a.png", "../train/b.png", str(inside), "../more/b.png"
    )
    for place in (file, tmp_path / "set"):
        assert len(read_records(place)) == 4


def test_a_link_can_not_be_left_by_going_up(tmp_path: Path) -> None:
    save_image(tmp_path / "disk/inner/b.png")
    save_image(tmp_path / "disk/private.png")
    save_image(tmp_path / "set/images/a.png")
    (tmp_path / "set/images/link").symlink_to(tmp_path / "disk/inner")
    save_coco(tmp_path / "set/instances.json", "a.png", "link/../private.png")
    assert read_records(tmp_path / "set").missing == ("private.png",)


@pytest.mark.parametrize(
    "values", [{"path": "{}/elsewhere"}, {"train": "{}/elsewhere/images"}, {"path": "../elsewhere"}]
)
def test_a_yaml_with_a_path_of_its_own_needs_permission(tmp_path: Path, values: dict[str, str]) -> None:
    save_image(tmp_path / "elsewhere/images/a.png")
    (tmp_path / "set").mkdir()
    lines = {"train": "images", "names": "[a]"} | {key: value.format(tmp_path) for key, value in values.items()}
    file = tmp_path / "set/data.yaml"
    file.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    for place in (file, file.parent):
        with pytest.raises(DataError, match=r"elsewhere/images', which is outside of .*--allow-outside"):
            read_records(place)
        assert len(read_records(place, allow_outside=True)) == 1
    # What the yaml's own folder has comes first.
    save_image(tmp_path / "set/images/b.png")
    if "path" in values:
        assert names_of(read_records(file)) == ["b.png"]


def test_a_list_that_names_images_outside_needs_permission(tmp_path: Path) -> None:
    far = save_image(tmp_path / "elsewhere/images/b.png")
    save_image(tmp_path / "set/images/a.png")
    (tmp_path / "set/train.txt").write_text(f"./images/a.png\n{far}\n")
    (tmp_path / "set/data.yaml").write_text("train: train.txt\nnames: [a]\n")
    for place in ("set", "set/train.txt"):
        with pytest.raises(DataError, match=r"b\.png', which is outside of"):
            read_records(tmp_path / place)
        assert len(read_records(tmp_path / place, allow_outside=True)) == 2
    faults: list[Fault] = []
    assert names_of(read_records(tmp_path / "set", faults=faults)) == ["a.png"]
    assert "outside-folder" in [fault.rule for fault in faults]


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("to", ["coco", "voc", "yolo"])
def test_only_images_are_copied_whatever_they_are_called(
    tmp_path: Path, to: Any, link: bool, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "private_key").write_bytes(SECRET)
    for name in ("a.png", "b.png"):
        save_image(tmp_path / "set/images" / name)
    (tmp_path / "set/images/text.png").write_bytes(SECRET)
    (tmp_path / "set/images/link.png").symlink_to(tmp_path / "private_key")
    os.mkfifo(tmp_path / "set/images/fifo.png")
    save_coco(tmp_path / "set/instances.json", "a.png", "text.png", "b.png", "link.png", "fifo.png")
    assert convert_set(tmp_path / "set", tmp_path / "new", to=to, link=link) == {"train": 2}
    assert "3 files are left out, because they are not images: 'text.png', 'link.png', 'fifo.png'" in caplog.text
    assert sum(split_set(tmp_path / "set", tmp_path / "parts", val=0.5, to=to, link=link).values()) == 2
    assert SECRET not in contents(tmp_path / "new") | contents(tmp_path / "parts")
    assert len(read_records(tmp_path / "new", allow_outside=True)) == 2


def test_a_set_without_any_image_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a.png").write_bytes(SECRET)
    save_coco(tmp_path / "set/instances.json", "a.png")
    with pytest.raises(DataError, match="None of the 1 files"):
        convert_set(tmp_path / "set", tmp_path / "new", to="coco")


def test_fifos_and_devices_in_a_set_are_named_and_left_out(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        save_image(tmp_path / "images" / name)
    os.mkfifo(tmp_path / "images/c.png")
    (tmp_path / "images/d.png").symlink_to("/dev/zero")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/a.txt").write_text("0 .5 .5 .2 .2\n")
    os.mkfifo(tmp_path / "labels/b.txt")
    (tmp_path / "data.yaml").write_text("train: images\nnames: [a]\n")
    (report,) = check_data(tmp_path).values()
    found = {(finding.rule, finding.image) for finding in report.errors}
    assert found == {("bad-label", "b.png"), ("unreadable", "c.png"), ("unreadable", "d.png")}
    assert "it is a FIFO" in next(finding.message for finding in report.errors if finding.image == "c.png")


@pytest.mark.parametrize("name", ["instances.json", "data.yaml", "list.txt"])
def test_a_fifo_is_no_set(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="it is a FIFO"):
        read_records(tmp_path / name)


def test_a_fifo_among_the_labels_of_voc_is_a_fault(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        save_image(tmp_path / "JPEGImages" / name)
    (tmp_path / "Annotations").mkdir()
    os.mkfifo(tmp_path / "Annotations/a.xml")
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
    text = f"<annotation><object><name>cat</name>{box}</object></annotation>"
    (tmp_path / "Annotations/b.xml").write_text(text)
    faults: list[Fault] = []
    assert len(read_records(tmp_path, faults=faults)) == 2
    assert [(fault.rule, Path(fault.path).name) for fault in faults] == [("bad-label", "a.png")]
