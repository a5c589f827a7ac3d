import logging
from pathlib import Path
from typing import get_args

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.records import differences
from support.shared import shared_path

from boxwright.core.errors import UsageError
from boxwright.data.formats import Format, read_records, write_records
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes

FORMATS: tuple[Format, ...] = get_args(Format)


def test_one_set_in_three_formats_gives_the_same_arrays(tmp_path: Path) -> None:
    scenes = generate_scenes(tmp_path / "scenes", images=6, seed=3, size_hw=(96, 128))
    for format in FORMATS:
        write_records(scenes, tmp_path / format, format)
        assert differences(read_records(tmp_path / format), scenes) == ["root"]
        assert differences(read_records(tmp_path / format, split="train"), scenes) == ["root"]


def test_a_set_goes_through_all_formats_and_comes_back(tmp_path: Path) -> None:
    scenes = generate_scenes(tmp_path / "scenes", images=5, seed=4, size_hw=(64, 80), classes=["star", "circle"])
    at = tmp_path / "scenes"
    for n, format in enumerate(("voc", "yolo", "coco", "yolo", "voc", "coco")):
        write_records(read_records(at), tmp_path / str(n), format, images="link")
        at = tmp_path / str(n)
    assert differences(read_records(at), scenes) == ["root"]


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        # No place for ids of images and areas of masks in either, for category ids in VOC.
        ("data/bccd", {"voc": set(), "yolo": set()}),
        ("data/coco_train_mini", {"voc": {"image_ids", "areas", "category_ids"}, "yolo": {"image_ids", "areas"}}),
        ("data/coco_val300", {"voc": {"image_ids", "areas", "category_ids"}}),
    ],
)
def test_real_sets_survive_every_format(tmp_path: Path, name: str, lost: dict[Format, set[str]]) -> None:
    records = read_records(shared_path(name))
    for format, fields in {"coco": set[str](), **lost}.items():
        write_records(records, tmp_path / format, format, images="link")
        assert set(differences(read_records(tmp_path / format), records)) == {"root", *fields}


def test_crowds_are_all_that_yolo_loses_of_a_real_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = read_records(shared_path("data/coco_val300"))
    with caplog.at_level(logging.WARNING):
        write_records(records, tmp_path, "yolo", images="link")
    again = read_records(tmp_path)
    assert "25 crowds are left out" in caplog.text
    assert np.array_equal(again.boxes_xyxy, records.boxes_xyxy[~records.crowd])
    assert np.array_equal(again.class_ids, records.class_ids[~records.crowd])


thousandths = st.integers(-200_000, 9_000_000).map(lambda n: n / 1000)


@settings(max_examples=60)
@given(
    corners=st.lists(st.tuples(thousandths, thousandths, thousandths, thousandths), max_size=12),
    size_hw=st.tuples(st.integers(1, 300), st.integers(1, 300)),
)
def test_boxes_are_the_same_to_the_last_bit_in_every_format(
    tmp_path_factory: pytest.TempPathFactory, corners: list[tuple[float, ...]], size_hw: tuple[int, int]
) -> None:
    root = tmp_path_factory.mktemp("set")
    (root / "a.png").write_bytes(cv2.imencode(".png", np.zeros(size_hw, np.uint8))[1].tobytes())
    records = Records.from_lists(
        root=root, paths=["a.png"], boxes_xyxy=[corners], class_ids=[[0] * len(corners)], names=["x"],
        sizes_hw=[size_hw],
    )  # fmt: skip
    for format in FORMATS:
        write_records(records, root / format, format)
        assert differences(read_records(root / format), records) == ["root"]


def test_yolo_numbers_are_as_short_as_they_can_be(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(cv2.imencode(".png", np.zeros((100, 200), np.uint8))[1].tobytes())
    records = Records.from_lists(
        root=tmp_path, paths=["a.png"], boxes_xyxy=[[[20, 10, 60, 90]]], class_ids=[[0]], names=["x"]
    )
    write_records(records, tmp_path / "new", "yolo")
    assert (tmp_path / "new/labels/train/a.txt").read_text() == "0 0.2 0.5 0.2 0.8\n"


def test_two_splits_go_to_one_folder_in_every_format(tmp_path: Path) -> None:
    scenes = generate_scenes(tmp_path / "scenes", images=4, seed=5, size_hw=(64, 64))
    for format in FORMATS:
        write_records(scenes.select([0, 1, 2]), tmp_path / format, format)
        write_records(scenes.select([3]), tmp_path / format, format, split="val")
        train, val = (read_records(tmp_path / format, split=split) for split in ("train", "val"))
        assert (len(train), len(val), val.relative_path(0)) == (3, 1, "000003.jpg")
        assert np.array_equal(val.boxes_xyxy, scenes.boxes(3))


def test_an_unknown_format_split_or_way_is_refused(tmp_path: Path) -> None:
    scenes = generate_scenes(tmp_path / "scenes", images=1, seed=5, size_hw=(64, 64))
    with pytest.raises(UsageError, match=r"'yollo'.*'yolo'"):
        write_records(scenes, tmp_path / "x", "yollo")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="split 'all'"):
        write_records(scenes, tmp_path / "x", "coco", split="all")
    with pytest.raises(UsageError, match="images 'move'"):
        write_records(scenes, tmp_path / "x", "coco", images="move")  # type: ignore[arg-type]
    assert not (tmp_path / "x").exists()
