import pickle
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import pytest
from support.records import differences

from boxwright.core.errors import UsageError
from boxwright.data.records import Records


@pytest.fixture
def records() -> Records:
    return Records.from_lists(
        root="set",
        paths=["a.jpg", "sub/été 1.png", "c.jpg"],
        boxes_xyxy=[[[0, 0, 10, 20], [5, 5, 6, 9]], [], [[1, 2, 3, 4]]],
        class_ids=[[0, 1], [], [1]],
        names=["cat", "dog"],
        category_ids=[3, 90],
        image_ids=[100, 7, 8],
        sizes_hw=[(40, 60), (0, 0), (30, 30)],
        crowd=[[False, True], [], [False]],
    )


def test_each_image_gets_its_own_boxes(records: Records) -> None:
    assert len(records) == 3
    assert records.boxes(0).tolist() == [[0, 0, 10, 20], [5, 5, 6, 9]]
    assert records.boxes(1).shape == (0, 4)
    assert records.class_ids_of(2).tolist() == [1]
    assert records.crowd_of(0).tolist() == [False, True]
    assert records.areas_of(0).tolist() == [200, 4]


def test_each_image_has_a_path_an_id_and_a_size(records: Records) -> None:
    assert (records.path(0), records.image_ids[0], records.size_hw(0)) == (Path("set/a.jpg"), 100, (40, 60))


def test_the_arrays_have_the_stated_types(records: Records) -> None:
    types = {
        "path_bytes": "uint8", "path_offsets": "int64", "image_ids": "int64", "sizes_hw": "int32",
        "boxes_xyxy": "float32", "class_ids": "int32", "crowd": "bool", "areas": "float32", "offsets": "int64",
    }  # fmt: skip
    assert {name: str(getattr(records, name).dtype) for name in types} == types


@pytest.mark.parametrize("name", ["plain.jpg", "with space.jpg", "日本/猫.jpg", "/absolute/x.png", "bad\udcff.jpg"])
def test_any_file_name_comes_back(name: str) -> None:
    records = Records.from_lists(root="r", paths=["x", name], boxes_xyxy=[[], []], class_ids=[[], []], names=["a"])
    assert records.relative_path(1) == name
    assert records.path(1) == Path("r") / name


def test_an_index_counts_from_the_end_when_negative_and_stops_at_the_end(records: Records) -> None:
    assert records.path(-1) == Path("set/c.jpg")
    assert records.boxes(-3).shape == (2, 4)
    with pytest.raises(IndexError):
        records.boxes(3)
    with pytest.raises(IndexError):
        records.path(-4)


def test_select_takes_images_in_the_given_order(records: Records) -> None:
    chosen = records.select([2, 0, 2])
    assert chosen.image_ids.tolist() == [8, 100, 8]
    assert [chosen.relative_path(i) for i in range(3)] == ["c.jpg", "a.jpg", "c.jpg"]
    assert chosen.boxes(1).tolist() == records.boxes(0).tolist()
    assert chosen.boxes(2).tolist() == records.boxes(2).tolist()
    assert chosen.crowd_of(1).tolist() == [False, True]
    assert chosen.names == records.names


def test_select_understands_masks_and_nothing(records: Records) -> None:
    assert records.select(np.array([True, False, True])).image_ids.tolist() == [100, 8]
    assert records.select([-1]).image_ids.tolist() == [8]
    empty = records.select([])
    assert len(empty) == 0
    assert empty.boxes_xyxy.shape == (0, 4)
    with pytest.raises(IndexError):
        records.select([3])


def test_selecting_all_images_changes_nothing(records: Records) -> None:
    assert differences(records.select(range(3)), records) == []


def test_differences_name_the_field(records: Records) -> None:
    assert differences(replace(records, names=("cat", "cow")), records) == ["names"]
    assert differences(replace(records, boxes_xyxy=records.boxes_xyxy + 1), records) == ["boxes_xyxy"]


def test_a_pickle_brings_the_same_read_only_set_back(records: Records) -> None:
    again = pickle.loads(pickle.dumps(records))
    assert differences(again, records) == []
    assert not again.boxes_xyxy.flags.writeable


def test_nobody_can_change_a_set_by_accident(records: Records) -> None:
    with pytest.raises(ValueError, match="read-only"):
        records.boxes(0)[0, 0] = 1
    with pytest.raises(FrozenInstanceError):
        records.names = ("x",)  # type: ignore[misc]


def test_the_callers_own_arrays_stay_writable(records: Records) -> None:
    boxes = np.ones((3, 4), np.float32)
    replace(records, boxes_xyxy=boxes)
    boxes[0] = 2
    assert boxes.flags.writeable


def test_memory_is_flat_arrays_only() -> None:
    count = 2000
    records = Records.from_lists(
        root="r",
        paths=[f"{i:012d}.jpg" for i in range(count)],
        boxes_xyxy=[np.zeros((7, 4))] * count,
        class_ids=[np.zeros(7)] * count,
        names=["a"],
    )
    # 16 bytes of path, 32 of ids, sizes and offsets, and 25 for each of 7 boxes.
    assert len(pickle.dumps(records)) < count * (16 + 32 + 7 * 25) + 4000


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"boxes_xyxy": np.zeros((3, 5))}, "boxes_xyxy has the shape .*4 columns"),
        ({"class_ids": np.zeros(2)}, r"class_ids has the shape \(2,\)"),
        ({"class_ids": np.array([0, 1, 2])}, "class ids go from 0 to 2"),
        ({"class_ids": np.array([0, -1, 1])}, "class ids go from -1"),
        ({"offsets": np.array([0, 2, 1, 3])}, "offsets must rise"),
        ({"offsets": np.array([0, 2, 2, 2])}, "offsets must rise from 0 to 3"),
        ({"path_offsets": np.array([0, 1, 2, 3])}, "path_offsets must rise"),
        ({"sizes_hw": np.zeros((2, 2))}, r"sizes_hw has the shape \(2, 2\)"),
        ({"category_ids": (1,)}, "2 class names but 1 category ids"),
        ({"category_ids": (1, 1)}, "share a category id"),
    ],
)
def test_parts_that_do_not_fit_are_refused(records: Records, change: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        replace(records, **change)  # type: ignore[arg-type]


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(UsageError, match="2 paths but boxes_xyxy has 1"):
        Records.from_lists(root="r", paths=["a", "b"], boxes_xyxy=[[]], class_ids=[[], []], names=["x"])
    with pytest.raises(UsageError, match="image 0 has 1 boxes but 2 class ids"):
        Records.from_lists(root="r", paths=["a"], boxes_xyxy=[[[0, 0, 1, 1]]], class_ids=[[0, 0]], names=["x"])
