import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from boxwright.data.augment import (
    Mixup,
    Scratch,
    draw_hsv_shift,
    draw_mixup,
    flip,
    keep_visible,
    mix,
    shift_hsv,
    to_targets,
)
from boxwright.data.dataset import Purpose, stream
from boxwright.data.policy import AugmentPolicy
from boxwright.data.tile import Tile


@pytest.fixture
def scratch() -> Scratch:
    return Scratch()


def plain_hsv(image: NDArray[np.uint8], shift: tuple[int, int, int]) -> NDArray[np.uint8]:
    """The published way: all in 16 bits, the hue modulo 180."""
    hsv = cv2.cvtColor(image, cv2.COLOR_BGR2HSV).astype(np.int16)
    hsv[..., 0] = (hsv[..., 0] + shift[0]) % 180
    hsv[..., 1] = np.clip(hsv[..., 1] + shift[1], 0, 255)
    hsv[..., 2] = np.clip(hsv[..., 2] + shift[2], 0, 255)
    return np.asarray(cv2.cvtColor(hsv.astype(np.uint8), cv2.COLOR_HSV2BGR), np.uint8)


@pytest.mark.parametrize("hue", [-4, 0, 4, 89, -90])
@pytest.mark.parametrize(("saturation", "value"), [(0, 1), (29, -29), (-29, 29), (255, -255)])
def test_colours_change_as_published(scratch: Scratch, hue: int, saturation: int, value: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (50, 70, 3)).astype(np.uint8)
    image[:10] = 114
    expected = plain_hsv(image, (hue, saturation, value))
    shift_hsv(image, (hue, saturation, value), scratch)
    # A hue beyond 180 that OpenCV wraps may round the other way.
    assert np.abs(image.astype(int) - expected).max() <= 1
    assert (image != expected).mean() < 0.001


def test_no_shift_leaves_the_pixels_alone(scratch: Scratch) -> None:
    image = np.random.default_rng(0).integers(0, 256, (9, 7, 3)).astype(np.uint8)
    before = image.copy()
    shift_hsv(image, (0, 0, 0), scratch)
    assert np.array_equal(image, before)


def test_colours_of_a_part_leave_the_rest_alone(scratch: Scratch) -> None:
    image = np.full((20, 30, 3), 100, np.uint8)
    shift_hsv(image[:10, :20], (0, 0, 25), scratch)
    assert (image[:10, :20] == 125).all()
    assert (image[10:] == 100).all()
    assert (image[:, 20:] == 100).all()


def test_drawn_shifts_reach_their_gains_and_are_zero_half_of_the_time() -> None:
    policy = AugmentPolicy(hsv_gains=(5, 30, 30))
    shifts = np.array([draw_hsv_shift(stream(0, Purpose.SAMPLE, 0, i), policy) for i in range(2000)])
    assert np.abs(shifts).max(axis=0).tolist() == [4, 29, 29]
    assert shifts.min(axis=0).tolist() == [-4, -29, -29]
    # Of the other half a fifth (hue) or a thirtieth rounds to zero.
    assert np.abs((shifts == 0).mean(axis=0) - (0.6, 0.517, 0.517)).max() < 0.05


def test_a_probability_of_zero_never_shifts() -> None:
    policy = AugmentPolicy(hsv_prob=0.0)
    assert {draw_hsv_shift(stream(0, Purpose.SAMPLE, 0, i), policy) for i in range(50)} == {(0, 0, 0)}


def test_flip_mirrors_pixels_and_boxes() -> None:
    image = np.zeros((10, 20, 3), np.uint8)
    image[2:5, 3:7] = 255
    rows = np.array([[3, 2, 7, 5, 1]], np.float32)
    flip(image, rows, 20)
    assert rows.tolist() == [[13, 2, 17, 5, 1]]
    assert (image[2:5, 13:17] == 255).all()
    assert image.sum() == 255 * 12 * 3


def mixed_square(mixup: Mixup, scratch: Scratch) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Mix a tile with one white square into a black image."""
    pixels = np.full((80, 100, 3), 40, np.uint8)
    pixels[20:50, 30:70] = 255
    out = np.zeros((100, 100, 3), np.uint8)
    # The tile is half of the original's size, so the box is twice the square.
    rows = np.array([[60, 40, 140, 100, 3]], np.float32)
    return out, mix(out, Tile(pixels, (160, 200)), rows, mixup, scratch)


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("at_xy", [(0.0, 0.0), (0.5, 0.3), (0.99, 0.99)])
@pytest.mark.parametrize("scale", [0.5, 0.8, 1.0, 1.234, 1.5])
def test_mixup_boxes_stay_on_their_object(
    scale: float, at_xy: tuple[float, float], flipped: bool, scratch: Scratch
) -> None:
    out, rows = mixed_square(Mixup(scale, flipped, at_xy), scratch)
    bright = np.argwhere(out[..., 0] > 100)
    if not len(bright):
        assert len(rows) == 0
        return
    (y1, x1), (y2, x2) = bright.min(axis=0), bright.max(axis=0) + 1
    assert rows.shape == (1, 5)
    assert np.abs(rows[0, :4] - (x1, y1, x2, y2)).max() <= 1.0
    assert rows[0, 4] == 3


def test_mixup_is_half_and_half_with_padding_and_black_beyond(scratch: Scratch) -> None:
    out, _ = mixed_square(Mixup(0.5, False, (0.0, 0.0)), scratch)
    assert out[2, 2, 0] == 20
    assert out[30, 25, 0] in (0, 20, 57)
    assert out[45, 10, 0] == 57  # the tile's own padding
    assert out[60, 60, 0] == 0


def test_drawn_mixups_stay_in_range() -> None:
    drawn = [draw_mixup(stream(0, Purpose.SAMPLE, 0, i), AugmentPolicy(mixup_scale=(0.5, 1.5))) for i in range(500)]
    scales = [d.scale for d in drawn]
    assert 0.5 <= min(scales) < 0.51
    assert 1.49 < max(scales) < 1.5
    assert 0.4 < np.mean([d.flipped for d in drawn]) < 0.6


def test_boxes_are_cut_and_slivers_dropped() -> None:
    rows = np.array([[-5, -5, 10, 10, 0], [95, 5, 120, 30, 1], [99, 5, 120, 30, 2], [5, 5, 6, 60, 3]], np.float32)
    assert keep_visible(rows, (50, 100)).tolist() == [[0, 0, 10, 10, 0], [95, 5, 100, 30, 1]]


def test_no_box_is_no_trouble() -> None:
    none = np.zeros((0, 5), np.float32)
    assert keep_visible(none, (10, 10)).shape == (0, 5)
    assert to_targets(none).shape == (0, 5)


def test_scratch_is_taken_again_and_grows(scratch: Scratch) -> None:
    first = scratch.take("a", (10, 10, 3))
    assert np.shares_memory(first, scratch.take("a", (5, 20, 3)))
    assert not np.shares_memory(first, scratch.take("b", (10, 10, 3)))
    assert scratch.take("a", (100, 100, 3)).shape == (100, 100, 3)
