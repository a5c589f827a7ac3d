from pathlib import Path

import numpy as np
import pytest
from support.records import differences

from boxwright.core.errors import DataError, UsageError
from boxwright.data.formats import read_records
from boxwright.data.synthetic import CLEAR, MIN_VISIBLE, SHAPES, add_shapes, draw_scene, generate_scenes
from boxwright.vision.decode import read_image


def test_a_scene_depends_on_seed_and_index_alone() -> None:
    first = draw_scene(3, 5, (96, 96))
    draw_scene(3, 4, (96, 96))
    for one, other in zip(first, draw_scene(3, 5, (96, 96)), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(("seed", "index"), [(4, 5), (3, 6), (5, 3)])
def test_other_seeds_and_indices_give_other_scenes(seed: int, index: int) -> None:
    assert not np.array_equal(draw_scene(3, 5, (96, 96))[0], draw_scene(seed, index, (96, 96))[0])


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        generate_scenes(tmp_path / name, images=4, seed=9, size_hw=(96, 96))
    one, two = (sorted(p for p in (tmp_path / n).rglob("*") if p.is_file()) for n in ("one", "two"))
    assert len(one) == 5
    assert [p.read_bytes() for p in one] == [p.read_bytes() for p in two]


def test_a_longer_set_begins_with_the_shorter_one(tmp_path: Path) -> None:
    generate_scenes(tmp_path / "short", images=2, seed=9, size_hw=(96, 96))
    generate_scenes(tmp_path / "long", images=3, seed=9, size_hw=(96, 96))
    name = "images/000001.jpg"
    assert (tmp_path / "short" / name).read_bytes() == (tmp_path / "long" / name).read_bytes()


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    records = generate_scenes(tmp_path / "set", images=6, seed=0, size_hw=(96, 128))
    assert differences(read_records(tmp_path / "set"), records) == []
    image, boxes, class_ids = draw_scene(0, 2, (96, 128))
    assert np.array_equal(records.boxes(2), boxes)
    assert np.array_equal(records.class_ids_of(2), class_ids)
    # The JPEG differs from the drawing by little.
    assert np.abs(read_image(records.path(2)).astype(int) - image).mean() < 8


def test_boxes_are_inside_and_of_the_stated_sizes() -> None:
    longest = []
    for index in range(60):
        _, boxes, _ = draw_scene(0, index, (160, 200))
        sides = boxes[:, 2:] - boxes[:, :2]
        assert (sides >= 1).all()
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, 2:] <= (200, 160)).all()
        longest += sides.max(axis=1).tolist()
    assert max(longest) <= 160 / 2 + 2
    assert max(longest) > 60
    assert min(longest) < 20


def test_clear_scenes_hold_few_large_shapes() -> None:
    counts, longest = [], []
    for index in range(60):
        _, boxes, _ = draw_scene(0, index, (192, 192), style=CLEAR)
        counts.append(len(boxes))
        longest += (boxes[:, 2:] - boxes[:, :2]).max(axis=1).tolist()
    assert 4 <= max(counts) <= CLEAR.most_shapes
    # A shape at the edge may lie outside by a tenth of its area, and so be shorter.
    assert min(longest) > 0.12 * 192


def test_all_classes_and_some_empty_scenes_occur() -> None:
    scenes = [draw_scene(1, index, (64, 64)) for index in range(80)]
    assert set(np.concatenate([ids for _, _, ids in scenes]).tolist()) == set(range(len(SHAPES)))
    assert 1 <= sum(len(boxes) == 0 for _, boxes, _ in scenes) <= 20


@pytest.mark.parametrize("shape", SHAPES)
def test_a_box_is_tight_around_the_shape(shape: str) -> None:
    def whiten(rng: object, canvas: np.ndarray, cover: np.ndarray, side: float) -> None:
        canvas[:] = cover[..., None]

    checked = 0
    for seed in range(80):
        canvas = np.zeros((100, 120, 3), np.float32)
        boxes, class_ids = add_shapes(np.random.default_rng(seed), canvas, [shape], whiten)
        if len(boxes) == 1:  # the pixels of a lone shape show its extent
            rows, columns = np.nonzero(canvas[..., 0] >= 0.5)
            assert boxes.tolist() == [[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]]
            assert class_ids.tolist() == [0]
            checked += 1
    assert checked >= 15


def test_no_shape_is_hidden_beyond_the_stated_part() -> None:
    # Each shape is painted in its own number, so that what is left of it can be counted.
    drawn: list[int] = []

    def stamp(rng: object, canvas: np.ndarray, cover: np.ndarray, side: float) -> None:
        drawn.append(np.count_nonzero(cover >= 0.5))
        canvas[cover >= 0.5] = len(drawn)

    hidden = 0
    for seed in range(60):
        drawn.clear()
        canvas = np.zeros((96, 96, 3), np.float32)
        boxes, _ = add_shapes(np.random.default_rng(seed), canvas, list(SHAPES), stamp)
        assert len(drawn) == len(boxes)
        for number, whole in enumerate(drawn, start=1):
            left = np.count_nonzero(canvas[..., 0] == number)
            hidden += left < whole
            assert left >= MIN_VISIBLE * whole
    assert hidden > 10


def test_classes_can_be_chosen_and_keep_their_order(tmp_path: Path) -> None:
    records = generate_scenes(tmp_path, images=3, seed=2, size_hw=(64, 64), classes=["star", "circle"])
    assert records.names == ("star", "circle")
    assert records.class_ids.max() <= 1


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean 'square'"):
        draw_scene(0, 0, classes=["sqare"])
    with pytest.raises(UsageError, match="different shapes"):
        draw_scene(0, 0, classes=["star", "star"])
    with pytest.raises(UsageError, match="too small"):
        draw_scene(0, 0, (32, 320))
    with pytest.raises(UsageError, match="seed=-1"):
        draw_scene(-1, 0)
    with pytest.raises(UsageError, match="images=0"):
        generate_scenes(tmp_path, images=0, seed=0)


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file/images"):
        generate_scenes(tmp_path / "file", images=1, seed=0)
