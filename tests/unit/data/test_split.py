from pathlib import Path

import pytest
from support.records import differences
from support.shared import shared_path

from boxwright.core.errors import DataError, UsageError
from boxwright.data.formats import write_records
from boxwright.data.records import Records
from boxwright.data.split import read_splits, split_records
from boxwright.data.synthetic import generate_scenes


def named(*names: str) -> Records:
    return Records.from_lists(
        root="r", paths=names, boxes_xyxy=[[]] * len(names), class_ids=[[]] * len(names), names=["x"]
    )


def paths(records: Records) -> set[str]:
    return {records.relative_path(i) for i in range(len(records))}


MANY = named(*(f"{i:04d}.jpg" for i in range(2000)))


def test_each_image_is_on_one_side_and_the_share_is_about_right() -> None:
    train, val = split_records(MANY, val=0.2)
    assert paths(train) | paths(val) == paths(MANY)
    assert not paths(train) & paths(val)
    assert 340 < len(val) < 460


def test_the_division_is_always_the_same_and_the_seed_changes_it() -> None:
    again = split_records(MANY, val=0.2)[1]
    assert differences(again, split_records(MANY, val=0.2)[1]) == []
    assert paths(split_records(MANY, val=0.2, seed=1)[1]) != paths(again)
    # Written down once, so that a run of today and one of next year see the same parts.
    assert sorted(paths(again))[:4] == ["0006.jpg", "0007.jpg", "0010.jpg", "0013.jpg"]


def test_an_image_stays_on_its_side_when_others_come_or_go() -> None:
    val = paths(split_records(MANY, val=0.3)[1])
    fewer = MANY.select(range(0, 2000, 3))
    assert paths(split_records(fewer, val=0.3)[1]) == val & paths(fewer)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("val", [0.001, 0.5, 0.999])
def test_neither_side_is_ever_empty(count: int, val: float) -> None:
    for seed in range(20):
        train, other = split_records(MANY.select(range(count)), val=val, seed=seed)
        assert len(train) >= 1
        assert len(other) >= 1
        assert len(train) + len(other) == count


def test_one_image_can_only_train_without_validation() -> None:
    with pytest.raises(DataError, match=r"1 image.*val=0"):
        split_records(named("a.jpg"))
    with pytest.raises(DataError, match="2 image"):
        split_records(named("a.jpg", "a.jpg"))
    train, val = split_records(named("a.jpg"), val=0)
    assert (len(train), len(val), val.names) == (1, 0, ("x",))


@pytest.mark.parametrize("val", [-0.1, 1, 20, float("nan")])
def test_a_share_out_of_range_is_refused(val: float) -> None:
    with pytest.raises(UsageError, match="val="):
        split_records(MANY, val=val)


@pytest.fixture
def scenes(tmp_path: Path) -> Records:
    return generate_scenes(tmp_path / "scenes", images=6, seed=2, size_hw=(64, 64))


@pytest.mark.parametrize("format", ["coco", "voc", "yolo"])
def test_given_parts_are_used_and_never_divided_again(tmp_path: Path, scenes: Records, format: str) -> None:
    write_records(scenes.select([0, 1]), tmp_path / "set", format)  # type: ignore[arg-type]
    write_records(scenes.select([2, 3, 4]), tmp_path / "set", format, split="val")  # type: ignore[arg-type]
    train, val = read_splits(tmp_path / "set")
    assert (paths(train), paths(val)) == (
        {"000000.jpg", "000001.jpg"},
        {"000002.jpg", "000003.jpg", "000004.jpg"},
    )
    with pytest.raises(UsageError, match=r"val=0\.2 .*'train' and 'val'"):
        read_splits(tmp_path / "set", val=0.2)


@pytest.mark.parametrize("format", ["coco", "voc", "yolo"])
def test_a_set_with_one_part_is_divided_alike_in_every_format(tmp_path: Path, scenes: Records, format: str) -> None:
    write_records(scenes, tmp_path / "set", format)  # type: ignore[arg-type]
    train, val = read_splits(tmp_path / "set", val=0.3, seed=5)
    expected = split_records(scenes, val=0.3, seed=5)
    assert (paths(train), paths(val)) == (paths(expected[0]), paths(expected[1]))


def test_test_serves_where_there_is_no_val(tmp_path: Path, scenes: Records) -> None:
    write_records(scenes.select([0, 1]), tmp_path / "set", "voc")
    write_records(scenes.select([2]), tmp_path / "set", "voc", split="test")
    main = tmp_path / "set/ImageSets/Main"
    (main / "train.txt").rename(main / "trainval.txt")
    train, val = read_splits(tmp_path / "set")
    assert (len(train), paths(val)) == (2, {"000002.jpg"})


def test_parts_with_other_classes_get_the_same_ones_or_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for split, names in (("train", ["circle", "star"]), ("val", ["star"]), ("test", ["square"])):
        made = generate_scenes(tmp_path / split, images=3, seed=3, size_hw=(64, 64), classes=names)
        write_records(made, root, "coco", split=split)
    train, val = read_splits(root)
    assert val.names == train.names == ("circle", "star")
    assert set(val.class_ids.tolist()) == {1}
    (root / "annotations/instances_val.json").unlink()
    with pytest.raises(DataError, match=r"'train' and 'test' .*'square'"):
        read_splits(root)


def test_the_real_sets_divide() -> None:
    train, val = read_splits(shared_path("data/bccd"))
    assert (len(train), len(val)) == (205, 87)
    train, val = read_splits(shared_path("data/coco_train_mini"), val=0.1)
    assert len(train) + len(val) == 363
    assert 20 < len(val) < 60
