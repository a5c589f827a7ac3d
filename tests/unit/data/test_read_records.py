import json
from pathlib import Path
from typing import Any

import pytest
from support.records import differences

from boxwright.core.errors import DataError, UsageError
from boxwright.data.formats import Fault, find_layout, read_records, write_records
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes


def save_coco(file: Path, *, image: str = "a.jpg", names: tuple[str, ...] = ("x",), **more: Any) -> None:
    values = {
        "images": [{"id": 1, "file_name": image}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}],
        "categories": [{"id": n, "name": name} for n, name in enumerate(names, start=1)],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values | more))


@pytest.fixture
def scenes(tmp_path: Path) -> Records:
    return generate_scenes(tmp_path / "scenes", images=2, seed=1, size_hw=(64, 64), classes=["circle", "star"])


def test_a_json_and_its_folder_give_the_same_set(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    save_coco(tmp_path / "labels.json")
    assert differences(read_records(tmp_path), read_records(tmp_path / "labels.json")) == []


def test_every_format_is_recognised_by_its_folder_and_files(tmp_path: Path, scenes: Records) -> None:
    for format, places in {
        "coco": ("", "annotations/instances_train.json"),
        "voc": ("", "Annotations"),
        "yolo": ("", "data.yaml", "images/train"),
    }.items():
        write_records(scenes, tmp_path / format, format)  # type: ignore[arg-type]
        for place in places:
            names = ["circle", "star"] if place == "images/train" else None
            assert differences(read_records(tmp_path / format / place, names=names), scenes) == ["root"]


def test_a_folder_with_two_formats_must_be_told_which(tmp_path: Path, scenes: Records) -> None:
    for format in ("coco", "yolo"):
        write_records(scenes, tmp_path / "both", format)  # type: ignore[arg-type]
    with pytest.raises(
        DataError,
        match=r"2 ways: coco .*instances_train\.json.* yolo .*data\.yaml",
    ):
        read_records(tmp_path / "both")
    assert differences(read_records(tmp_path / "both", format="yolo"), scenes) == ["root"]
    assert differences(read_records(tmp_path / "both/data.yaml"), scenes) == ["root"]
    with pytest.raises(DataError, match="format 'voc'"):
        read_records(tmp_path / "both", format="voc")
    with pytest.raises(UsageError, match=r"'vok'.*'voc'"):
        read_records(tmp_path / "both", format="vok")  # type: ignore[arg-type]


def test_several_json_files_are_splits_by_their_names(tmp_path: Path) -> None:
    for split in ("train2017", "val2017"):
        save_coco(tmp_path / f"annotations/instances_{split}.json", image=f"{split}.jpg")
        save_coco(tmp_path / f"annotations/person_keypoints_{split}.json")
        (tmp_path / split).mkdir()
        (tmp_path / split / f"{split}.jpg").touch()
    assert find_layout(tmp_path).splits == ("train", "val")
    assert read_records(tmp_path, split="val").path(0) == tmp_path / "val2017/val2017.jpg"
    with pytest.raises(DataError, match=r"2 COCO json files .*\(train, val\)"):
        read_records(tmp_path)
    with pytest.raises(DataError, match=r"no split 'test'.*'train', 'val'"):
        read_records(tmp_path, split="test")
    save_coco(tmp_path / "annotations/instances_val2014.json")
    with pytest.raises(DataError, match=r"2 COCO json files .*instances_val2014"):
        read_records(tmp_path, split="val")


def test_a_json_in_the_folder_of_each_split_will_do(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        save_coco(tmp_path / split / "_annotations.coco.json")
        (tmp_path / split / "a.jpg").touch()
    assert find_layout(tmp_path).splits == ("train", "val")
    assert read_records(tmp_path, split="val").root == tmp_path / "valid"


def test_a_set_without_splits_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    save_coco(tmp_path / "labels.json")
    assert find_layout(tmp_path).splits == ()
    with pytest.raises(DataError, match=r"no split 'val'.* no splits"):
        read_records(tmp_path, split="val")


def test_other_json_files_do_not_count(tmp_path: Path, scenes: Records) -> None:
    write_records(scenes, tmp_path / "set", "yolo")
    (tmp_path / "set/settings.json").write_text("{}")
    assert len(read_records(tmp_path / "set")) == 2


def test_a_lone_broken_json_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "labels.json").write_text('{"images": [')
    with pytest.raises(DataError, match=r"labels\.json' is not valid"):
        read_records(tmp_path)


def test_given_names_set_the_order_of_a_coco_set(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    save_coco(tmp_path / "labels.json", names=("x", "y"))
    records = read_records(tmp_path, names=["z", "y", "x"])
    assert (records.names, records.class_ids.tolist(), records.category_ids) == (("z", "y", "x"), [2], (3, 2, 1))
    with pytest.raises(DataError, match=r"boxes of 'x'.*'y', 'z'"):
        read_records(tmp_path, names=["y", "z"])
    with pytest.raises(UsageError, match="named twice"):
        records.with_names(["x", "x"])


def test_faults_of_a_json_are_collected_and_the_rest_is_read(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.jpg").touch()
    wrong: list[dict[str, Any]] = [
        {"id": 2, "image_id": 1, "category_id": 9, "bbox": [1, 2, 3, 4]},
        {"id": 3, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3]},
        {"id": 4, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "area": "big"},
        {"id": 5, "image_id": 77, "category_id": 1, "bbox": [1, 2, 3, 4]},
        {"id": 6, "image_id": [], "category_id": 1, "bbox": [1, 2, 3, 4]},
    ]
    right = {"id": 1, "image_id": 2, "category_id": 1, "bbox": [1, 2, 3, 4], "area": 7.5, "iscrowd": 1}
    images: list[dict[str, Any]] = [
        {"id": 1, "file_name": "a.jpg", "height": "tall", "width": 5},
        {"id": 2, "file_name": "b.jpg", "height": 40, "width": 60},
        {"id": 2, "file_name": "b.jpg"},
        {"id": 3},
        {"id": 4, "file_name": "gone.jpg"},
    ]
    save_coco(tmp_path / "labels.json", images=images, annotations=[*wrong, right])
    with pytest.raises(DataError):
        read_records(tmp_path)
    faults: list[Fault] = []
    records = read_records(tmp_path, faults=faults)
    assert (len(records), records.missing, records.image_ids.tolist()) == (2, ("gone.jpg",), [1, 2])
    assert records.boxes_xyxy.tolist() == [[1, 2, 4, 6]]
    assert (records.areas.tolist(), records.crowd.tolist()) == ([7.5], [True])
    assert records.sizes_hw.tolist() == [[0, 0], [40, 60]]
    found = [(fault.rule, Path(fault.path).name) for fault in faults]
    assert found == [
        ("bad-label", "b.jpg"),
        ("bad-label", "labels.json"),
        ("unknown-class", "a.jpg"),
        ("bad-label", "a.jpg"),
        ("bad-label", "a.jpg"),
        ("bad-label", "labels.json"),
        ("bad-label", "labels.json"),
        ("bad-label", "a.jpg"),
        ("unlabelled-image", "c.jpg"),
    ]
    assert "annotation 2 belongs to category 9" in faults[2].message


def test_a_clean_json_reads_the_same_with_and_without_a_list_of_faults(scenes: Records) -> None:
    faults: list[Fault] = []
    assert differences(read_records(scenes.root.parent, faults=faults), scenes) == []
    assert faults == []


def test_a_json_of_no_use_is_refused_also_with_a_list_of_faults(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    save_coco(tmp_path / "labels.json", categories=[{"id": 1, "name": "a"}, {"id": 1, "name": "b"}])
    with pytest.raises(DataError, match="several categories have the id 1"):
        read_records(tmp_path, faults=[])


def test_a_folder_of_images_has_no_labels(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.jpg").touch()
    with pytest.raises(DataError, match="1 images but no labels"):
        read_records(tmp_path)


def test_an_empty_folder_a_wrong_file_and_nothing_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither images nor labels"):
        read_records(tmp_path)
    (tmp_path / "a.txt").touch()
    with pytest.raises(DataError, match=r"a\.txt'.* COCO json"):
        read_records(tmp_path / "a.txt")
    with pytest.raises(DataError, match="no data set at"):
        read_records(tmp_path / "nowhere")
