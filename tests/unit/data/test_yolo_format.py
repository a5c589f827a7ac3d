import logging
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from support.records import differences

from boxwright.core.errors import DataError, UsageError
from boxwright.data.formats import CopyMode, Fault, read_records, write_records
from boxwright.data.formats.yolo_files import read_sizes_hw
from boxwright.data.records import Records


def read_yolo(path: Path, split: str | None = None, **options: Any) -> Records:
    return read_records(path, split=split, format="yolo", **options)


def write_yolo(records: Records, folder: Path, *, split: str = "train", images: CopyMode = "copy") -> None:
    write_records(records, folder, "yolo", split=split, images=images)


def save_image(file: Path, size_hw: tuple[int, int] = (50, 100)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(cv2.imencode(file.suffix, np.zeros((*size_hw, 3), np.uint8))[1].tobytes())


def save(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def lay_out(
    root: Path, labels: dict[str, str | None], images_at: str = "images/train", labels_at: str = "labels/train"
) -> None:
    for stem, text in labels.items():
        save_image(root / images_at / f"{stem}.png")
        if text is not None:
            save(root / labels_at / f"{stem}.txt", text)


def describe(root: Path, **values: Any) -> Path:
    return save(root / "data.yaml", yaml.safe_dump({"names": ["cat", "dog"], "train": "images/train"} | values))


def names_of(records: Records) -> list[str]:
    return [records.relative_path(i) for i in range(len(records))]


TWO = {"a": "1 0.5 0.5 0.2 0.4\n\n0 0.25 0.5 0.5 1\n", "b": None}


def test_parts_of_the_image_become_pixels(tmp_path: Path) -> None:
    lay_out(tmp_path, TWO)
    records = read_yolo(describe(tmp_path))
    assert records.names == ("cat", "dog")
    assert records.boxes(0).tolist() == [[40, 15, 60, 35], [0, 0, 50, 50]]
    assert records.class_ids_of(0).tolist() == [1, 0]
    assert records.areas_of(0).tolist() == [400, 2500]
    assert records.boxes(1).shape == (0, 4)
    assert records.sizes_hw.tolist() == [[50, 100]] * 2
    assert (records.root, names_of(records)) == (tmp_path / "images/train", ["a.png", "b.png"])


def test_a_polygon_becomes_the_box_around_it(tmp_path: Path) -> None:
    lay_out(tmp_path, {"a": "0 0.1 0.2 0.5 0.2 0.1 0.6"})
    records = read_yolo(describe(tmp_path))
    assert records.boxes(0).tolist() == [[10, 10, 50, 30]]
    assert records.areas_of(0).tolist() == [400]


@pytest.mark.parametrize("names", [["cat", "dog"], {0: "cat", 1: "dog"}])
def test_names_may_be_a_list_or_numbered(tmp_path: Path, names: Any) -> None:
    lay_out(tmp_path, TWO)
    assert read_yolo(describe(tmp_path, names=names, nc=2)).names == ("cat", "dog")


@pytest.mark.parametrize(
    ("images_at", "labels_at", "values"),
    [
        ("images/train", "labels/train", {}),
        ("deep/images/train", "deep/labels/train", {"path": "deep"}),
        ("images/train", "labels/train", {"path": "/home/somebody/datasets/pets"}),
        ("train/images", "train/labels", {"train": "../train/images"}),
        ("images/train", "labels/train", {"train": ["images/train"]}),
        ("images/train", "images/train", {}),
        ("photos", "photos", {"train": "photos"}),
        ("images/train", "labels/train", {"train": "list.txt"}),
    ],
)
def test_the_usual_layouts_are_found(tmp_path: Path, images_at: str, labels_at: str, values: Any) -> None:
    lay_out(tmp_path, TWO, images_at, labels_at)
    save(tmp_path / "list.txt", "./images/train/a.png\nimages/train/b.png\n")
    for place in (describe(tmp_path, **values), tmp_path):
        records = read_yolo(place, "train")
        assert (records.root, names_of(records)) == (tmp_path / images_at, ["a.png", "b.png"])
        assert len(records.boxes(0)) == 2


@pytest.mark.parametrize("pattern", ["images/{}", "{}/images"])
def test_folders_without_a_yaml_need_a_file_of_class_names(tmp_path: Path, pattern: str) -> None:
    for split, stem in (("train", "a"), ("valid", "c")):
        at = pattern.format(split)
        lay_out(tmp_path, {stem: TWO["a"]}, at, at.replace("images", "labels"))
    with pytest.raises(DataError, match=r"classes .*'classes\.txt'"):
        read_yolo(tmp_path)
    assert read_yolo(tmp_path, "val", names=["x", "y"]).names == ("x", "y")
    save(tmp_path / "classes.txt", "cat\ndog\n")
    assert names_of(read_yolo(tmp_path, "val")) == ["c.png"]
    assert read_yolo(tmp_path, "train").names == ("cat", "dog")


def test_splits_are_those_of_the_yaml(tmp_path: Path) -> None:
    lay_out(tmp_path, TWO)
    lay_out(tmp_path, {"c": ""}, "images/val", "labels/val")
    file = describe(tmp_path, val="images/val", test="images/nowhere")
    assert names_of(read_yolo(file, "val")) == ["c.png"]
    assert names_of(read_yolo(file)) == ["train/a.png", "train/b.png", "val/c.png"]
    with pytest.raises(DataError, match=r"nowhere'"):
        read_yolo(file, "test")
    with pytest.raises(DataError, match=r"no split 'test'.*'train'"):
        read_yolo(describe(tmp_path), "test")


def test_a_list_of_images_is_a_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lay_out(tmp_path, TWO)
    file = save(tmp_path / "some.txt", "./images/train/b.png\n./images/train/a.png\n./images/train/gone.png\n")
    describe(tmp_path)
    with caplog.at_level(logging.WARNING):
        records = read_yolo(file)
    assert names_of(records) == ["b.png", "a.png"]
    assert records.missing == ("gone.png",)
    assert "have no counterpart" in caplog.text


def test_a_label_without_an_image_is_named(tmp_path: Path) -> None:
    lay_out(tmp_path, TWO)
    save(tmp_path / "labels/train/lost.txt", "0 0.5 0.5 1 1")
    save(tmp_path / "labels/train/classes.txt", "cat\ndog")
    assert read_yolo(describe(tmp_path)).missing == ("../../labels/train/lost.txt",)


def test_an_image_without_a_label_file_is_told_but_stays(tmp_path: Path) -> None:
    lay_out(tmp_path, TWO)
    faults: list[Fault] = []
    records = read_yolo(describe(tmp_path), faults=faults)
    assert [(f.rule, f.path) for f in faults] == [("unlabelled-image", str(records.path(1)))]


def test_an_image_that_can_not_be_read_stays_without_boxes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lay_out(tmp_path, {"a": TWO["a"], "b": TWO["a"]})
    (tmp_path / "images/train/a.png").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        records = read_yolo(describe(tmp_path))
    assert (records.size_hw(0), len(records.boxes(0)), len(records.boxes(1))) == ((0, 0), 0, 2)
    assert "1 images can't be read" in caplog.text


@pytest.mark.parametrize(
    ("text", "rule", "says"),
    [
        ("0 0.5 0.5 0.1 0.1\n2 0.5 0.5 0.1 0.1", "unknown-class", r"a\.txt': line 2: there is no class 2, only 0 to 1"),
        ("-1 0.5 0.5 0.1 0.1", "unknown-class", "there is no class -1"),
        ("cat 0.5 0.5 0.1 0.1", "bad-label", "line 1: 'cat 0.5 .* something other than numbers"),
        ("0.5 0.5 0.5 0.1 0.1", "bad-label", r"the class '0\.5' is not a whole number"),
        ("0 0.5 0.5 0.1", "bad-label", "4 numbers are neither"),
        ("0 0.5 0.5 0.1 0.1 0.9", "bad-label", "6 numbers are neither"),
        ("0 0.5 nan 0.1 0.1", "bad-label", "values outside ±1e6"),
    ],
)
def test_what_is_wrong_is_raised_or_collected(tmp_path: Path, text: str, rule: str, says: str) -> None:
    lay_out(tmp_path, {"a": text})
    file = describe(tmp_path)
    with pytest.raises(DataError, match=says):
        read_yolo(file)
    faults: list[Fault] = []
    records = read_yolo(file, faults=faults)
    assert [(f.rule, f.path) for f in faults] == [(rule, str(records.path(0)))]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("names: [a", "is not valid yaml"),
        ("- 1", "does not describe a YOLO set"),
        ("names: [a]", "names no images"),
        ("{names: {1: a}, train: images/train}", r"the keys of 'names' are \[1\]"),
        ("{names: cat, train: images/train}", "where a list of class names"),
        ("{names: [a], nc: 2, train: images/train}", "has nc 2 but 1 names"),
        ("{names: [a], train: images/nowhere}", "which does not exist"),
        ("{names: [a, b], category_ids: [1], train: images/train}", "'category_ids' is"),
    ],
)
def test_a_yaml_of_no_use_says_why(tmp_path: Path, text: str, says: str) -> None:
    lay_out(tmp_path, TWO)
    with pytest.raises(DataError, match=says):
        read_yolo(save(tmp_path / "data.yaml", text))


@pytest.mark.parametrize("numbered", [False, True])
def test_class_names_are_what_is_written(tmp_path: Path, numbered: bool) -> None:
    names = ("no", "on", "012", "1e3", "null", "2020-01-01", "2020-99-99", "~", "true", "0x1F")
    lay_out(tmp_path, TWO)
    listed = "".join(f"  {n}: {name}\n" if numbered else f"  - {name}\n" for n, name in enumerate(names))
    records = read_yolo(save(tmp_path / "data.yaml", f"train: images/train\nnc: 10\nnames:\n{listed}"))
    assert records.names == names
    write_yolo(records, tmp_path / "new")
    assert read_yolo(tmp_path / "new").names == names


LAYERS = "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9))
HOSTILE = {
    "an alias inside of what it names": "train: &a [b, *a]",
    "nested too deeply": "train: " + "[" * 50_000,
    "more than 200,000 values": "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + LAYERS + "train: *j\nnames: [a]",
    "bytes, and at most": "# " + "x" * (1 << 20),
    "has a list where a path should be": "train: [[images/train]]\nnames: [a]",
    "the name of class 1 is a list": "train: images/train\nnames: [a, [b]]",
    "the name of class 1 is empty": "train: images/train\nnames: [a, '']",
    "which does not exist": "train: " + "x" * 300 + "\nnames: [a]",
    "key 'names' is given twice": "train: images/train\nnames: [a]\nnames: [b]",
}


@pytest.mark.parametrize("says", HOSTILE)
def test_a_hostile_yaml_is_refused_at_once(tmp_path: Path, says: str) -> None:
    lay_out(tmp_path, TWO)
    with pytest.raises(DataError, match=says):
        read_yolo(save(tmp_path / "data.yaml", HOSTILE[says]))


def test_writing_keeps_order_classes_and_category_ids(tmp_path: Path) -> None:
    for name in ("z.png", "sub/ü b.png"):
        save_image(tmp_path / "old" / name, (37, 53))
    records = Records.from_lists(
        root=tmp_path / "old",
        paths=["z.png", "sub/ü b.png"],
        boxes_xyxy=[[[0.1, 0.2, 33.3333, 20]], []],
        class_ids=[[1], []],
        names=["dog", "été"],
        category_ids=[18, 90],
        sizes_hw=[(37, 53)] * 2,
    )
    write_yolo(records, tmp_path / "new")
    assert differences(read_yolo(tmp_path / "new"), records) == ["root"]
    write_yolo(records.select([1]), tmp_path / "new", split="val")
    values = yaml.safe_load((tmp_path / "new/data.yaml").read_text())
    # z before s is no order of names, so it takes a list.
    assert (values["train"], values["val"], values["category_ids"]) == ("train.txt", "images/val", [18, 90])
    assert (tmp_path / "new/labels/val/sub/ü b.txt").read_text() == ""
    assert names_of(read_yolo(tmp_path / "new", "val")) == ["sub/ü b.png"]
    with pytest.raises(DataError, match=r"data\.yaml.* classes"):
        write_yolo(Records.from_lists(root=".", paths=[], boxes_xyxy=[], class_ids=[], names=["x"]), tmp_path / "new")
    with pytest.raises(UsageError, match="Unknown split"):
        write_yolo(records, tmp_path / "new", split="all")


def test_crowds_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_image(tmp_path / "a.png")
    records = Records.from_lists(
        root=tmp_path, paths=["a.png"], boxes_xyxy=[[[0, 0, 5, 5], [1, 1, 9, 9]]], class_ids=[[0, 0]],
        crowd=[[True, False]], names=["x"],
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        write_yolo(records, tmp_path / "new")
    assert "1 crowds are left out" in caplog.text
    assert read_yolo(tmp_path / "new").boxes(0).tolist() == [[1, 1, 9, 9]]


def test_an_image_of_unknown_size_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    records = Records.from_lists(
        root=tmp_path, paths=["a.png"], boxes_xyxy=[[[0, 0, 5, 5]]], class_ids=[[0]], names=["x"]
    )
    with pytest.raises(DataError, match=r"size of .*a\.png'"):
        write_yolo(records, tmp_path / "new")


def test_the_size_of_a_file_that_can_not_be_read_is_none(tmp_path: Path) -> None:
    save_image(tmp_path / "good.png", (40, 60))
    (tmp_path / "bad.png").write_bytes((tmp_path / "good.png").read_bytes()[:50])
    paths = [tmp_path / name for name in ("bad.png", "good.png", "none.jpg")]
    assert read_sizes_hw(paths) == [None, (40, 60), None]
