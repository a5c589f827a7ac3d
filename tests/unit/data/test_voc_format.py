import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.records import differences
from support.shared import shared_path

from boxwright.core.errors import DataError, UsageError
from boxwright.data.formats import CopyMode, Fault, read_records, write_records
from boxwright.data.records import Records


def read_voc(path: Path, split: str | None = None, **options: Any) -> Records:
    return read_records(path, split=split, format="voc", **options)


def write_voc(records: Records, folder: Path, *, split: str = "train", images: CopyMode = "copy") -> None:
    write_records(records, folder, "voc", split=split, images=images)


def xml(*objects: str, filename: str = "a.jpg", size: str = "<width>60</width><height>40</height>") -> str:
    inner = "".join(f"<object>{o}</object>" for o in objects)
    return f"<annotation><filename>{filename}</filename><size>{size}</size>{inner}</annotation>"


def thing(name: str, *corners: object, more: str = "") -> str:
    tags = zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True)
    return f"<name>{name}</name>{more}<bndbox>{''.join(f'<{t}>{v}</{t}>' for t, v in tags)}</bndbox>"


def lay_out(root: Path, xmls: dict[str, str], *, labels: str = "Annotations", images: str = "JPEGImages") -> Path:
    for stem, text in xmls.items():
        for file in (root / labels / f"{stem}.xml", root / images / f"{stem}.jpg"):
            file.parent.mkdir(parents=True, exist_ok=True)
        (root / labels / f"{stem}.xml").write_text(text)
        (root / images / f"{stem}.jpg").write_bytes(b"\xff\xd8\xff the start of an image")
    return root


def write_list(root: Path, name: str, lines: Sequence[str]) -> None:
    file = root / "ImageSets/Main" / f"{name}.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


THREE = {
    "a": xml(thing("dog", 1, 2, 30, 40), thing("cat", 5.5, 6.25, 7, 8)),
    "b": xml(),
    "c": xml(thing("ant", 0, 0, 9, 9, more="<difficult>1</difficult>")),
}


def test_boxes_are_as_written_and_classes_sorted(tmp_path: Path) -> None:
    records = read_voc(lay_out(tmp_path, THREE))
    assert records.names == ("ant", "cat", "dog")
    assert records.category_ids == (1, 2, 3)
    assert records.boxes(0).tolist() == [[1, 2, 30, 40], [5.5, 6.25, 7, 8]]
    assert records.class_ids_of(0).tolist() == [2, 1]
    assert records.boxes(1).shape == (0, 4)
    assert records.size_hw(0) == (40, 60)
    assert records.path(2) == tmp_path / "JPEGImages/c.jpg"
    assert not records.crowd.any()


@pytest.mark.parametrize(
    ("labels", "images", "named"),
    [
        ("Annotations", "JPEGImages", ""),
        ("Annotations", "JPEGImages", "Annotations"),
        ("annotations", "images", ""),
        ("VOC2007/Annotations", "VOC2007/JPEGImages", ""),
        ("VOC2007/Annotations", "VOC2007/JPEGImages", "VOC2007"),
        ("", "", ""),
        ("pictures", "pictures", ""),
        ("images", "images", ""),
    ],
)
def test_the_usual_layouts_are_found(tmp_path: Path, labels: str, images: str, named: str) -> None:
    records = read_voc(lay_out(tmp_path, THREE, labels=labels, images=images) / named)
    assert [records.path(i) for i in range(3)] == [tmp_path / images / f"{stem}.jpg" for stem in "abc"]


def test_two_sets_in_one_folder_must_be_named(tmp_path: Path) -> None:
    lay_out(tmp_path / "VOC2007", THREE)
    lay_out(tmp_path / "VOC2012", THREE)
    with pytest.raises(DataError, match=r"2 Pascal VOC sets .*'VOC2007', 'VOC2012'"):
        read_voc(tmp_path)
    assert len(read_voc(tmp_path / "VOC2012")) == 3


def test_lists_make_the_splits_and_keep_their_order(tmp_path: Path) -> None:
    lay_out(tmp_path, THREE)
    write_list(tmp_path, "train", ["c", "a.jpg"])
    write_list(tmp_path, "val", ["b  -1"])
    train, val, whole = (read_voc(tmp_path, split) for split in ("train", "val", None))
    assert [train.relative_path(i) for i in range(2)] == ["c.jpg", "a.jpg"]
    assert [val.relative_path(i) for i in range(1)] == ["b.jpg"]
    assert [whole.relative_path(i) for i in range(3)] == ["c.jpg", "a.jpg", "b.jpg"]
    assert train.names == val.names == ("ant", "cat", "dog")
    with pytest.raises(DataError, match=r"no split 'test'.*'train', 'val'"):
        read_voc(tmp_path, "test")


def test_folders_named_as_splits_are_splits(tmp_path: Path) -> None:
    lay_out(tmp_path, {"a": THREE["a"]}, labels="train", images="train")
    lay_out(tmp_path, {"c": THREE["c"]}, labels="valid", images="valid")
    val, whole = read_voc(tmp_path, "val"), read_voc(tmp_path)
    assert val.path(0) == tmp_path / "valid/c.jpg"
    assert val.names == ("ant", "cat", "dog")
    assert [whole.relative_path(i) for i in range(2)] == ["train/a.jpg", "valid/c.jpg"]


def test_class_names_can_be_given_by_the_caller_or_a_file(tmp_path: Path) -> None:
    lay_out(tmp_path, THREE)
    assert read_voc(tmp_path, names=["dog", "cat", "ant"]).class_ids_of(0).tolist() == [0, 1]
    (tmp_path / "labels.txt").write_text("cat\ndog\nant\ncow\n")
    assert read_voc(tmp_path).names == ("cat", "dog", "ant", "cow")


def test_difficult_objects_are_boxes_like_others(tmp_path: Path) -> None:
    assert read_voc(lay_out(tmp_path, THREE)).crowd_of(2).tolist() == [False]


def test_an_xml_without_an_image_is_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lay_out(tmp_path, THREE)
    (tmp_path / "JPEGImages/a.jpg").unlink()
    with caplog.at_level(logging.WARNING):
        records = read_voc(tmp_path)
    assert records.missing == ("a.jpg",)
    assert len(records) == 2
    assert "1 images that" in caplog.text
    shutil.rmtree(tmp_path / "JPEGImages")
    with pytest.raises(DataError, match=r"None of the 3 images .*'a\.jpg'"):
        read_voc(tmp_path)


def test_an_image_without_an_xml_is_left_out_and_told(tmp_path: Path) -> None:
    lay_out(tmp_path, THREE)
    (tmp_path / "JPEGImages/d.png").touch()
    faults: list[Fault] = []
    assert len(read_voc(tmp_path, faults=faults)) == 3
    assert [(f.rule, Path(f.path).name) for f in faults] == [("unlabelled-image", "d.png")]


def test_an_image_is_found_by_the_name_in_the_xml_too(tmp_path: Path) -> None:
    lay_out(tmp_path, {"a": xml(filename="other.png")})
    (tmp_path / "JPEGImages/a.jpg").rename(tmp_path / "JPEGImages/other.png")
    assert read_voc(tmp_path, names=["x"]).relative_path(0) == "other.png"
    (tmp_path / "JPEGImages/a.bmp").touch()
    (tmp_path / "JPEGImages/a.png").touch()
    (tmp_path / "Annotations/a.xml").write_text(xml(filename="a.png"))
    assert read_voc(tmp_path, names=["x"]).relative_path(0) == "a.png"


@pytest.mark.parametrize(
    ("text", "rule", "says"),
    [
        ("<annotation><object>", "bad-label", r"b\.xml' is not valid xml: .*line 1"),
        ("", "bad-label", "is not valid xml"),
        (xml(thing("cat", 1, 2, "x", 4)), "bad-label", r"object 1 \('cat'\) has the corners \['1', '2', 'x', '4'\]"),
        (xml(thing("cat", 1, 2, "nan", 4)), "bad-label", "has the corners"),
        (xml("<name>cat</name>"), "bad-label", "has the corners"),
        (xml(thing("", 1, 2, 3, 4)), "bad-label", "object 1 has no name"),
        (xml(thing("cow", 1, 2, 3, 4)), "unknown-class", "'cow' is none of the classes 'ant', 'cat', 'dog'"),
    ],
)
def test_what_is_wrong_is_raised_or_collected(tmp_path: Path, text: str, rule: str, says: str) -> None:
    lay_out(tmp_path, {**THREE, "b": text})
    with pytest.raises(DataError, match=says):
        read_voc(tmp_path, names=["ant", "cat", "dog"])
    faults: list[Fault] = []
    records = read_voc(tmp_path, names=["ant", "cat", "dog"], faults=faults)
    assert len(records) == 3
    assert records.boxes(1).shape == (0, 4)
    assert [(f.rule, f.path) for f in faults] == [(rule, str(records.path(1)))]


def test_writing_and_reading_gives_the_same_set(tmp_path: Path) -> None:
    root = lay_out(tmp_path / "old", {"z": xml(), "sub/a ü": xml(), "b": xml()})
    records = Records.from_lists(
        root=root / "JPEGImages",
        paths=["z.jpg", "sub/a ü.jpg", "b.jpg"],
        boxes_xyxy=[[[0.1, 1e-3, 33.3333, 40], [1, 2, 3, 4]], [], [[-5, 0, 1e4, 1e-7]]],
        class_ids=[[1, 0], [], [2]],
        crowd=[[False, True], [], [False]],
        names=["b & c", "<a>", "é"],
        sizes_hw=[(40, 60), (0, 0), (7, 8)],
    )
    write_voc(records, tmp_path / "new", images="link")
    again = read_voc(tmp_path / "new")
    assert differences(again, records) == ["root"]
    assert (tmp_path / "new/JPEGImages/sub/a ü.jpg").is_symlink()
    text = (tmp_path / "new/Annotations/z.xml").read_text()
    assert "<xmin>0.1</xmin><ymin>0.001</ymin><xmax>33.3333</xmax><ymax>40</ymax>" in text


def test_two_splits_share_a_folder_if_their_classes_agree(tmp_path: Path) -> None:
    records = read_voc(lay_out(tmp_path / "old", THREE))
    write_voc(records.select([0, 1]), tmp_path / "new")
    write_voc(records.select([2]), tmp_path / "new", split="val")
    assert len(read_voc(tmp_path / "new", "train")) == 2
    assert read_voc(tmp_path / "new", "val").relative_path(0) == "c.jpg"
    with pytest.raises(DataError, match=r"labels\.txt"):
        write_voc(read_voc(tmp_path / "old", names=["dog", "cat", "ant"]), tmp_path / "new", split="test")
    with pytest.raises(UsageError, match=r"'vall'.*'val'"):
        write_voc(records, tmp_path / "new", split="vall")


def test_images_that_would_share_a_label_file_or_a_name_are_refused(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.png"):
        (tmp_path / name).write_bytes(b"GIF89a")
    values = {"boxes_xyxy": [[], []], "class_ids": [[], []], "names": ["x"]}
    twins = Records.from_lists(root=tmp_path, paths=["a.jpg", "a.png"], **values)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"'a\.jpg' and 'a\.png'"):
        write_voc(twins, tmp_path / "new")
    (tmp_path / "new/JPEGImages").mkdir(parents=True)
    (tmp_path / "new/JPEGImages/a.jpg").write_bytes(b"other")
    with pytest.raises(DataError, match=r"JPEGImages/a\.jpg'.*another image"):
        write_voc(twins.select([0]), tmp_path / "new")


def test_the_real_blood_cells_load_with_their_splits() -> None:
    place = shared_path("data/bccd")
    counts = {split: len(read_voc(place, split)) for split in ("train", "val", "test", "trainval")}
    assert counts == {"train": 205, "val": 87, "test": 72, "trainval": 292}
    whole = read_voc(place)
    assert (len(whole), len(whole.boxes_xyxy), whole.names) == (364, 4888, ("Platelets", "RBC", "WBC"))
    assert whole.missing == ()
