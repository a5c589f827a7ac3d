import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import differences

from boxwright.core.errors import DataError
from boxwright.data.formats import read_records
from boxwright.data.formats.coco import read_coco, write_coco
from boxwright.data.records import Records


def content() -> dict[str, Any]:
    """Two images, three boxes, category ids with gaps and out of order."""
    return {
        "images": [
            {"id": 42, "file_name": "a.jpg", "height": 100, "width": 200},
            {"id": 7, "file_name": "sub/b ü.jpg"},
        ],
        "annotations": [
            {"id": 10, "image_id": 7, "category_id": 90, "bbox": [1, 2, 3, 4], "area": 5.5, "iscrowd": 1},
            {"id": 11, "image_id": 42, "category_id": 3, "bbox": [10.5, 20.25, 30, 40], "iscrowd": 0},
            {"id": 12, "image_id": 7, "category_id": 3, "bbox": [0, 0, 9, 9]},
        ],
        "categories": [{"id": 90, "name": "dog"}, {"id": 3, "name": "cat"}],
    }


def lay_out(root: Path, json_at: str, images_at: str, values: dict[str, Any] | None = None) -> Path:
    values = content() if values is None else values
    for image in values["images"]:
        path = root / images_at / image["file_name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    file = root / json_at
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values))
    return file


def test_boxes_go_to_their_images_and_classes_follow_the_category_ids(tmp_path: Path) -> None:
    records = read_coco(lay_out(tmp_path, "instances.json", "images"))
    assert records.names == ("cat", "dog")
    assert records.category_ids == (3, 90)
    assert records.image_ids.tolist() == [42, 7]
    assert records.boxes(0).tolist() == [[10.5, 20.25, 40.5, 60.25]]
    assert records.boxes(1).tolist() == [[1, 2, 4, 6], [0, 0, 9, 9]]
    assert records.class_ids_of(1).tolist() == [1, 0]
    assert records.crowd_of(1).tolist() == [True, False]
    assert records.areas_of(1).tolist() == [5.5, 81]
    assert records.areas_of(0).tolist() == [1200]
    assert records.sizes_hw.tolist() == [[100, 200], [0, 0]]
    assert records.path(1) == tmp_path / "images/sub/b ü.jpg"
    assert records.missing == ()


@pytest.mark.parametrize(
    ("json_at", "images_at"),
    [
        ("instances.json", ""),
        ("instances.json", "images"),
        ("annotations/any.json", "images"),
        ("annotations/instances_val2017.json", "val2017"),
        ("annotations/instances_val2017.json", "images/val2017"),
        ("annotations/instances_val2017.json", ""),
        ("train/_annotations.coco.json", "train"),
        ("train.json", "train"),
        ("labels/train_boxes.json", "images/train"),
    ],
)
def test_images_are_found_in_every_usual_layout(tmp_path: Path, json_at: str, images_at: str) -> None:
    records = read_coco(lay_out(tmp_path, json_at, images_at))
    assert records.path(0) == tmp_path / images_at / "a.jpg"
    assert records.path(1).is_file()


def test_a_relative_path_is_read_and_the_root_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path, "annotations/x.json", "images")
    monkeypatch.chdir(tmp_path / "annotations")
    assert read_coco(Path("x.json")).root == tmp_path / "images"


def test_each_split_finds_its_own_images_when_names_repeat(tmp_path: Path) -> None:
    for split in ("train2017", "val2017"):
        lay_out(tmp_path, f"annotations/instances_{split}.json", split)
    assert read_coco(tmp_path / "annotations/instances_val2017.json").root == tmp_path / "val2017"
    assert read_coco(tmp_path / "annotations/instances_train2017.json").root == tmp_path / "train2017"


@pytest.mark.parametrize("json_at", ["instances.json", "something.json", "annotations/instances_val2017.json"])
def test_a_folder_with_one_coco_json_is_enough(tmp_path: Path, json_at: str) -> None:
    lay_out(tmp_path, json_at, "images")
    assert len(read_records(tmp_path)) == 2


def test_other_json_files_do_not_count(tmp_path: Path) -> None:
    file = lay_out(tmp_path, "instances.json", "images")
    (tmp_path / "results.json").write_text('[{"image_id": 1, "bbox": [1, 2, 3, 4]}]')
    (tmp_path / "captions.json").write_text('{"images": [], "annotations": []}')
    (tmp_path / "empty.json").touch()
    assert differences(read_records(tmp_path), read_coco(file)) == []


def test_several_coco_files_are_listed(tmp_path: Path) -> None:
    lay_out(tmp_path, "annotations/instances_train2017.json", "train2017")
    lay_out(tmp_path, "annotations/instances_val2017.json", "val2017")
    with pytest.raises(DataError, match=r"2 COCO json .*train2017\.json.*val2017\.json"):
        read_records(tmp_path)


def test_a_json_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.json"):
        read_coco(tmp_path / "gone.json")


def test_missing_images_are_left_out_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = lay_out(tmp_path, "instances.json", "images")
    (tmp_path / "images/a.jpg").unlink()
    with caplog.at_level(logging.WARNING):
        records = read_coco(file)
    assert records.missing == ("a.jpg",)
    assert records.image_ids.tolist() == [7]
    assert records.boxes(0).tolist() == [[1, 2, 4, 6], [0, 0, 9, 9]]
    assert "1 of the 2 images" in caplog.text
    assert "'a.jpg'" in caplog.text


def test_a_set_none_of_whose_images_exists_is_refused(tmp_path: Path) -> None:
    file = lay_out(tmp_path, "instances.json", "elsewhere")
    with pytest.raises(DataError, match=r"None of the 2 images .*'a\.jpg'"):
        read_coco(file)


def test_images_without_boxes_and_a_single_image_are_fine(tmp_path: Path) -> None:
    values = content() | {"annotations": []}
    values["images"] = values["images"][:1]
    records = read_coco(lay_out(tmp_path, "x.json", "", values))
    assert (len(records), len(records.boxes_xyxy), len(records.names)) == (1, 0, 2)


def test_a_byte_order_mark_is_no_hindrance(tmp_path: Path) -> None:
    file = lay_out(tmp_path, "x.json", "")
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert len(read_coco(file)) == 2


def planted(**changes: Any) -> dict[str, Any]:
    """Return the content with one annotation changed."""
    values = content()
    values["annotations"][1].update(changes)
    return values


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (planted(image_id=999), "annotation 11 belongs to image 999"),
        (planted(image_id=[1]), r"annotation 11 belongs to image \[1\]"),
        (planted(category_id=1), "annotation 11 belongs to category 1"),
        (planted(category_id=None), "annotation 11 belongs to category None"),
        (planted(bbox=[1, 2, 3]), r"annotation 11 has bbox \[1, 2, 3\] where 4 finite numbers"),
        (planted(bbox=["a", 2, 3, 4]), "annotation 11 has bbox"),
        (planted(bbox=[float("nan"), 2, 3, 4]), "annotation 11 has bbox"),
        (planted(bbox=[0, 0, 1e39, 1]), "annotation 11 has bbox"),
        (planted(bbox=None), "annotation 11 has bbox None"),
        (planted(area="big"), "annotation 11 has area 'big'"),
        (content() | {"images": []}, "lists no images"),
        (content() | {"categories": []}, "lists no categories"),
        (content() | {"images": [{"id": 1}]}, "image 1 has no 'file_name'"),
        (content() | {"images": [{"id": "1", "file_name": "a.jpg"}]}, "image id '1' is not an integer"),
        (content() | {"images": content()["images"] * 2}, "several images have the id 42"),
        (
            content() | {"categories": [{"id": 3, "name": "a"}, {"id": 3, "name": "b"}]},
            "several categories have the id 3",
        ),
        (content() | {"images": [{"id": 1, "file_name": "a.jpg", "height": "x"}]}, "height and width of 'a.jpg'"),
        ({"images": []}, "no list of 'annotations'"),
        (content() | {"categories": ["cat"]}, "no list of 'categories'"),
        ([1, 2], "no list of 'images'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, values: Any, says: str) -> None:
    if isinstance(values, dict) and isinstance(values.get("images"), list) and len(values["images"]) == 1:
        values["annotations"] = []
    (tmp_path / "a.jpg").touch()
    file = tmp_path / "x.json"
    file.write_text(json.dumps(values))
    with pytest.raises(DataError, match=says):
        read_coco(file)


def test_broken_json_is_located(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"images": [],\n "annotations": [1,,2]}')
    with pytest.raises(DataError, match=r"x\.json'.*line 2 column 20"):
        read_coco(file)
    file.write_bytes(b'{"images": "\xff\xfe"}')
    with pytest.raises(DataError, match="is not valid json"):
        read_coco(file)


def test_writing_and_reading_gives_the_same_set(tmp_path: Path) -> None:
    records = read_coco(lay_out(tmp_path, "annotations/instances_val2017.json", "val2017"))
    write_coco(records, tmp_path / "annotations/again_val2017.json")
    assert differences(read_coco(tmp_path / "annotations/again_val2017.json"), records) == []
    written = json.loads((tmp_path / "annotations/again_val2017.json").read_text())
    assert [c["id"] for c in written["categories"]] == [3, 90]
    assert written["images"][0] == {"id": 42, "file_name": "a.jpg", "height": 100, "width": 200}
    assert written["images"][1] == {"id": 7, "file_name": "sub/b ü.jpg"}


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    records = read_coco(lay_out(tmp_path, "instances.json", ""))
    (tmp_path / "taken.json").mkdir()
    with pytest.raises(DataError, match=r"taken\.json"):
        write_coco(records, tmp_path / "taken.json")
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


decimals = st.integers(-200_000, 9_000_000).map(lambda n: n / 1000)


@given(corners=st.lists(st.tuples(decimals, decimals, decimals, decimals), max_size=20))
def test_written_boxes_are_the_same_to_the_last_bit(
    tmp_path_factory: pytest.TempPathFactory, corners: list[tuple[float, ...]]
) -> None:
    root = tmp_path_factory.mktemp("set")
    (root / "a.jpg").touch()
    records = Records.from_lists(
        root=root, paths=["a.jpg"], boxes_xyxy=[corners], class_ids=[[0] * len(corners)], names=["x"]
    )
    write_coco(records, root / "x.json")
    assert np.array_equal(read_coco(root / "x.json").boxes_xyxy, records.boxes_xyxy)


def test_written_numbers_are_short(tmp_path: Path) -> None:
    values = planted(bbox=[236.98, 142.51, 24.7, 69.5], area=1716.65)
    records = read_coco(lay_out(tmp_path, "x.json", "", values))
    write_coco(records, tmp_path / "x.json")
    first = json.loads((tmp_path / "x.json").read_text())["annotations"][0]
    assert first["bbox"] == [236.98, 142.51, 24.7, 69.5]
    assert first["area"] == 1716.65


def test_a_set_that_is_written_in_pieces_is_one_json(tmp_path: Path) -> None:
    count = 9000  # images, of which only some of the second half have a box
    boxes = [[[1, 2, 3.5, n]] if n > 5000 and n % 2 else [] for n in range(count)]
    records = Records.from_lists(
        root=tmp_path, paths=[f"{n}.jpg" for n in range(count)], boxes_xyxy=boxes,
        class_ids=[[0] * len(own) for own in boxes], names=["x"],
    )  # fmt: skip
    write_coco(records, tmp_path / "x.json")
    written = json.loads((tmp_path / "x.json").read_text())
    assert [image["file_name"] for image in written["images"]] == [f"{n}.jpg" for n in range(count)]
    owners = [n for n in range(count) if boxes[n]]
    assert [(a["id"], a["image_id"]) for a in written["annotations"]] == [*enumerate(owners, start=1)]
    assert written["annotations"][-1]["bbox"] == [1, 2, 2.5, 8997]
    assert (tmp_path / "x.json").read_text() == json.dumps(written, separators=(",", ":"))
