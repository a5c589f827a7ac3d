from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from boxwright.core.errors import DataError, UsageError
from boxwright.data.cache import TileCache
from boxwright.data.dataset import DetectionDataset, Sample
from boxwright.data.policy import AugmentPolicy, policy_for
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes
from boxwright.data.tile import FileTiles, Tile
from boxwright.data.tile_store import disk_store, memory_store
from boxwright.vision.decode import read_image
from boxwright.vision.letterbox import letterbox

SIZE = (96, 128)
FULL = policy_for("yolox_s")
PLAIN = AugmentPolicy(mosaic_prob=0, mixup_prob=0, hsv_prob=0, flip_prob=0)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return generate_scenes(tmp_path / "set", images=10, seed=5, size_hw=(120, 200))


def same(a: Sample, b: Sample) -> bool:
    return np.array_equal(a.image, b.image) and np.array_equal(a.targets, b.targets)


def one_square(folder: Path, count: int = 1) -> Records:
    """Images with one white square on black, and its box."""
    folder.mkdir(exist_ok=True)
    image = np.zeros((120, 160, 3), np.uint8)
    image[30:80, 40:120] = 255
    for i in range(count):
        (folder / f"{i}.png").write_bytes(cv2.imencode(".png", image)[1].tobytes())
    return Records.from_lists(
        root=folder,
        paths=[f"{i}.png" for i in range(count)],
        boxes_xyxy=[[[40, 30, 120, 80]]] * count,
        class_ids=[[0]] * count,
        names=["square"],
    )


def bright_box(image: NDArray[np.uint8]) -> tuple[float, float, float, float]:
    at = np.argwhere(image.min(axis=2) > 160)
    (y1, x1), (y2, x2) = at.min(axis=0), at.max(axis=0) + 1
    return (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1


def test_a_sample_depends_on_seed_epoch_and_index_alone(records: Records) -> None:
    forwards = DetectionDataset(records, SIZE, policy=FULL, seed=3)
    backwards = DetectionDataset(records, SIZE, policy=FULL, seed=3)
    first = [forwards.sample(2, i) for i in range(10)]
    second = {i: backwards.sample(2, i) for i in reversed(range(10))}
    assert all(same(first[i], second[i]) for i in range(10))


@pytest.mark.parametrize("change", ["seed", "epoch", "index"])
def test_another_seed_epoch_or_index_gives_another_sample(records: Records, change: str) -> None:
    dataset = DetectionDataset(records, SIZE, policy=FULL, seed=3)
    other = DetectionDataset(records, SIZE, policy=FULL, seed=4 if change == "seed" else 3)
    sample = other.sample(3 if change == "epoch" else 2, 6 if change == "index" else 5)
    assert not np.array_equal(dataset.sample(2, 5).image, sample.image)


def test_no_cache_changes_a_sample(records: Records, tmp_path: Path) -> None:
    files = FileTiles(records, SIZE)
    none = DetectionDataset(records, SIZE, policy=FULL)
    caches = [
        TileCache(files, [memory_store(10, limit_bytes=4 * 76 * 128 * 3, may_grow=lambda: True)]),
        TileCache(files, [disk_store(tmp_path / "a.tiles", 10, 0), memory_store(10, limit_bytes=1, may_grow=bool)]),
        TileCache(files, [disk_store(tmp_path / "a.tiles", 10, 0)]),
    ]
    for tiles in caches:
        dataset = DetectionDataset(records, SIZE, policy=FULL, tiles=tiles)
        for epoch in (0, 1):
            assert all(same(none.sample(epoch, i), dataset.sample(epoch, i)) for i in range(10))


def test_targets_lie_inside_and_have_classes_of_the_set(records: Records) -> None:
    for anchor in ("corner", "centre"):
        dataset = DetectionDataset(records, SIZE, policy=replace(FULL, anchor=anchor))
        found = np.concatenate([dataset.sample(e, i).targets for e in range(5) for i in range(10)])
        low, high = found[:, 1:3] - found[:, 3:] / 2, found[:, 1:3] + found[:, 3:] / 2
        assert len(found) > 50
        assert low.min() >= -1e-3
        assert (high.max(axis=0) <= np.array([128, 96]) + 1e-3).all()
        assert found[:, 3:].min() > 1
        assert set(found[:, 0]) <= set(range(len(records.names)))


@pytest.mark.parametrize("size", [(96, 128), (64, 96), (128, 160)])
@pytest.mark.parametrize("flip_prob", [0.0, 1.0])
def test_a_single_image_keeps_its_box_on_its_object(tmp_path: Path, size: tuple[int, int], flip_prob: float) -> None:
    dataset = DetectionDataset(one_square(tmp_path / "set"), SIZE, policy=replace(PLAIN, flip_prob=flip_prob))
    sample = dataset.sample(0, 0, size_hw=size)
    assert sample.image.shape == (*size, 3)
    assert np.abs(sample.targets[0, 1:] - bright_box(sample.image)).max() <= 1


def test_an_image_without_changes_is_letterboxed_as_for_inference(tmp_path: Path) -> None:
    records = one_square(tmp_path / "set")
    sample = DetectionDataset(records, SIZE, policy=PLAIN).sample(0, 0)
    assert np.array_equal(sample.image, letterbox(read_image(records.path(0)), SIZE)[0])


def test_a_mosaic_keeps_boxes_on_their_objects(tmp_path: Path) -> None:
    policy = AugmentPolicy(mixup_prob=0, hsv_prob=0, degrees=0, shear=0, scale=(0.6, 1.2), anchor="centre")
    dataset = DetectionDataset(one_square(tmp_path / "set", 4), SIZE, policy=policy)
    checked = 0
    for epoch in range(10):
        for size in (SIZE, (128, 160)):
            sample = dataset.sample(epoch, 0, size_hw=size)
            bright = (sample.image.min(axis=2) > 160).astype(np.uint8)
            count, _, stats, _ = cv2.connectedComponentsWithStats(bright)
            for x, y, w, h, area in stats[1:count]:
                if area > 60:
                    checked += 1
                    wanted = np.array([x + w / 2, y + h / 2, w, h])
                    assert np.abs(sample.targets[:, 1:] - wanted).max(axis=1).min() <= 2
    assert checked > 30


def test_padding_of_a_single_image_keeps_its_grey(records: Records) -> None:
    dataset = DetectionDataset(records, SIZE, policy=replace(FULL, flip_prob=1.0).no_aug())
    inner = int(120 * 128 / 200)
    for i in range(10):
        assert (dataset.sample(0, i).image[inner:] == 114).all()


def test_a_sample_is_written_where_it_is_wanted(records: Records) -> None:
    dataset = DetectionDataset(records, SIZE, policy=FULL)
    batch = np.zeros((3, *SIZE, 3), np.uint8)
    sample = dataset.sample(0, 4, out=batch[1])
    assert np.shares_memory(sample.image, batch)
    assert np.array_equal(batch[1], dataset.sample(0, 4).image)
    assert not batch[[0, 2]].any()


def test_crowds_and_boxes_without_area_are_no_targets(tmp_path: Path) -> None:
    base = one_square(tmp_path / "set")
    records = Records.from_lists(
        root=base.root, paths=["0.png"], names=["a", "b"], class_ids=[[0, 1, 0, 0]],
        boxes_xyxy=[[[40, 30, 120, 80], [0, 0, 150, 100], [5, 5, 5, 50], [20, 20, 10, 30]]],
        crowd=[[False, True, False, False]],
    )  # fmt: skip
    assert DetectionDataset(records, SIZE, policy=PLAIN).sample(0, 0).targets.shape == (1, 5)


def test_boxes_beyond_the_image_are_cut_to_it(tmp_path: Path) -> None:
    base = one_square(tmp_path / "set")
    records = Records.from_lists(
        root=base.root, paths=["0.png"], names=["a"], class_ids=[[0]], boxes_xyxy=[[[-50, -50, 80, 60]]]
    )
    (target,) = DetectionDataset(records, SIZE, policy=PLAIN).sample(0, 0).targets
    assert np.allclose(target, [0, 32, 24, 64, 48])


@pytest.mark.parametrize("policy", [FULL, PLAIN, policy_for("yolox_nano")])
def test_a_set_of_one_image_works(tmp_path: Path, policy: AugmentPolicy) -> None:
    dataset = DetectionDataset(one_square(tmp_path / "set"), SIZE, policy=policy)
    assert all(dataset.sample(e, 0).image.shape == (*SIZE, 3) for e in range(20))


def test_a_set_without_any_box_works(records: Records) -> None:
    bare = Records.from_lists(
        root=records.root,
        paths=[records.relative_path(i) for i in range(10)],
        boxes_xyxy=[[]] * 10,
        class_ids=[[]] * 10,
        names=["a"],
    )
    dataset = DetectionDataset(bare, SIZE, policy=FULL)
    assert all(dataset.sample(0, i).targets.shape == (0, 5) for i in range(10))


def test_mixup_takes_images_with_boxes_only(tmp_path: Path) -> None:
    labelled = one_square(tmp_path / "set", 10)
    records = Records.from_lists(
        root=labelled.root,
        paths=[labelled.relative_path(i) for i in range(10)],
        boxes_xyxy=[[[40, 30, 120, 80]] if i == 7 else [] for i in range(10)],
        class_ids=[[0] if i == 7 else [] for i in range(10)],
        names=["a"],
    )
    policy = replace(FULL, partner_window=2, mixup_scale=(0.5, 1.0), scale=(0.1, 0.2))
    dataset = DetectionDataset(records, SIZE, policy=policy)
    assert all(len(dataset.sample(0, i).targets) >= 1 for i in range(10))


def test_partners_come_from_the_window_before_the_image(records: Records) -> None:
    asked: list[int] = []

    class Watched(TileCache):
        def tile(self, index: int) -> Tile:
            asked.append(index)
            return super().tile(index)

    tiles = Watched(FileTiles(records, SIZE))
    dataset = DetectionDataset(records, SIZE, policy=replace(FULL, partner_window=3), tiles=tiles)
    order = dataset.order(0).tolist()
    for place, index in enumerate(order):
        asked.clear()
        dataset.sample(0, index)
        assert set(asked) <= {order[place - back] for back in range(4)}


def test_each_epoch_is_shuffled_anew(records: Records) -> None:
    training = DetectionDataset(records, SIZE, policy=FULL, seed=1)
    orders = [training.order(e).tolist() for e in range(4)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def break_image(records: Records, index: int) -> None:
    records.path(index).write_bytes(records.path(index).read_bytes()[:200])


def test_a_bad_image_is_replaced_by_the_next_one_named_once_and_counted(
    records: Records, caplog: pytest.LogCaptureFixture
) -> None:
    break_image(records, 4)
    break_image(records, 5)
    dataset = DetectionDataset(records, SIZE, policy=PLAIN)
    for epoch in range(3):
        assert np.array_equal(dataset.sample(epoch, 4).image, dataset.sample(epoch, 6).image)
    assert sorted(dataset.bad_images) == [4, 5]
    assert caplog.text.count("000004.jpg") == 1
    assert "cut off" in dataset.bad_images[5]


def test_what_replaces_a_bad_image_does_not_depend_on_when_it_was_found(records: Records) -> None:
    break_image(records, 4)
    one, other = (DetectionDataset(records, SIZE, policy=FULL) for _ in range(2))
    other.sample(9, 4)
    assert all(same(one.sample(0, i), other.sample(0, i)) for i in range(10))


def test_the_last_image_is_replaced_by_the_first(records: Records) -> None:
    break_image(records, 9)
    dataset = DetectionDataset(records, SIZE, policy=PLAIN)
    assert np.array_equal(dataset.sample(0, 9).image, dataset.sample(0, 0).image)


def test_a_set_of_bad_images_only_is_an_error(records: Records) -> None:
    for i in range(10):
        break_image(records, i)
    with pytest.raises(DataError, match="None of the 10 images"):
        DetectionDataset(records, SIZE, policy=FULL).sample(0, 3)


def test_the_next_phase_shares_images_and_bad_ones(records: Records) -> None:
    break_image(records, 4)
    dataset = DetectionDataset(records, SIZE, policy=FULL, seed=8)
    dataset.sample(0, 4)
    last = dataset.with_policy(FULL.no_aug())
    assert last.tiles is dataset.tiles
    assert last.bad_images is dataset.bad_images
    assert last.seed == 8


def test_a_cache_for_something_else_is_refused(records: Records) -> None:
    with pytest.raises(UsageError, match="10 images at"):
        DetectionDataset(records, SIZE, policy=FULL, tiles=TileCache(FileTiles(records, (64, 64))))
    with pytest.raises(UsageError, match="2 images"):
        DetectionDataset(records, SIZE, policy=FULL, tiles=TileCache(FileTiles(records.select([0, 1]), SIZE)))


def test_a_wrong_size_an_empty_set_and_a_wrong_index_are_refused(records: Records) -> None:
    with pytest.raises(UsageError, match="multiples of 32"):
        DetectionDataset(records, (100, 100), policy=FULL)
    with pytest.raises(DataError, match="no image"):
        DetectionDataset(records.select([]), SIZE, policy=FULL)
    with pytest.raises(IndexError, match="image 10 of 10"):
        DetectionDataset(records, SIZE, policy=FULL).sample(0, 10)
