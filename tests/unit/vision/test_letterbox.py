import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxwright.core.errors import DataError
from boxwright.vision.letterbox import letterbox, shrink, to_input, undo_letterbox

PAD_VALUE = 114  # as the networks were trained


def _noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_the_image_fills_the_top_left_and_114_the_rest() -> None:
    image = _noise(100, 200)
    boxed, ratio = letterbox(image, (64, 96))
    assert ratio == 0.48
    np.testing.assert_array_equal(boxed[:48], cv2.resize(image, (96, 48), interpolation=cv2.INTER_LINEAR))
    assert (boxed[48:] == PAD_VALUE).all()
    assert boxed.dtype == np.uint8


def test_a_high_image_is_padded_on_the_right() -> None:
    boxed, ratio = letterbox(_noise(200, 100), (64, 64))
    assert ratio == 0.32
    assert (boxed[:, 32:] == PAD_VALUE).all()
    assert boxed[:, :32].std() > 30


def test_an_image_of_the_right_size_is_left_alone() -> None:
    image = _noise(64, 32)
    boxed, ratio = letterbox(image, (64, 32))
    assert ratio == 1
    np.testing.assert_array_equal(boxed, image)


def test_a_small_image_is_made_larger() -> None:
    boxed, ratio = letterbox(np.full((8, 16, 3), 7, np.uint8), (64, 64))
    assert ratio == 4
    assert (boxed[:32] == 7).all()
    assert (boxed[32:] == PAD_VALUE).all()


def test_every_pixel_of_a_given_array_is_written() -> None:
    batch = np.full((2, 64, 96, 3), 255, np.uint8)
    out, _ = letterbox(_noise(10, 30), (64, 96), batch[1])
    assert out.base is batch or out is batch[1] or np.shares_memory(out, batch)
    np.testing.assert_array_equal(batch[1], letterbox(_noise(10, 30), (64, 96))[0])
    assert (batch[0] == 255).all()


@pytest.mark.parametrize("shape", [(1, 5000), (5000, 1), (1, 1)])
def test_an_extreme_shape_keeps_at_least_one_pixel(shape: tuple[int, int]) -> None:
    boxed, _ = letterbox(np.full((*shape, 3), 9, np.uint8), (64, 64))
    assert (boxed[0, 0] == 9).all()


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
    ],
)
def test_what_is_no_bgr_image_is_refused(image: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"uint8 array of shape \(H, W, 3\)"):
        letterbox(image, (64, 64))


def test_the_usual_input_is_bgr_from_0_to_255() -> None:
    batch = np.stack([_noise(32, 64), _noise(32, 64) // 2])
    values = to_input(batch, "bgr255")
    assert (values.dtype, values.shape) == (np.float32, (2, 3, 32, 64))
    for channel in range(3):
        np.testing.assert_array_equal(values[:, channel], batch[..., channel])


def test_the_legacy_input_is_rgb_with_the_mean_and_deviation_of_imagenet() -> None:
    batch = _noise(32, 64)[None]
    values = to_input(batch, "legacy")
    assert (values.dtype, values.shape) == (np.float32, (1, 3, 32, 64))
    for channel, (bgr, mean, deviation) in enumerate([(2, 0.485, 0.229), (1, 0.456, 0.224), (0, 0.406, 0.225)]):
        plain = (batch[..., bgr].astype(np.float64) / 255 - mean) / deviation
        np.testing.assert_allclose(values[:, channel], plain, atol=1e-5)


def test_the_batch_itself_is_not_changed() -> None:
    batch = _noise(32, 32)[None]
    before = batch.copy()
    for preprocessing in ("bgr255", "legacy"):
        to_input(batch, preprocessing)[:] = 0
    np.testing.assert_array_equal(batch, before)


@given(st.integers(8, 600), st.integers(8, 600), st.sampled_from([(64, 64), (32, 96), (416, 416)]), st.data())
def test_a_box_comes_back_to_where_it_was(
    height: int, width: int, size_hw: tuple[int, int], data: st.DataObject
) -> None:
    _, ratio = letterbox(np.zeros((height, width, 3), np.uint8), size_hw)
    x = sorted(data.draw(st.tuples(st.floats(0, width), st.floats(0, width))))
    y = sorted(data.draw(st.tuples(st.floats(0, height), st.floats(0, height))))
    box = np.array([[x[0], y[0], x[1], y[1]]], np.float32)
    boxed = (box * ratio).astype(np.float32)
    assert (boxed[:, 2] <= size_hw[1] + 1e-3).all()
    assert (boxed[:, 3] <= size_hw[0] + 1e-3).all()
    np.testing.assert_allclose(undo_letterbox(boxed, ratio, (height, width)), box, atol=1e-3 * max(height, width))


def test_boxes_are_cut_to_the_image() -> None:
    boxes = np.array([[-5, -5, 70, 90]], np.float32)
    np.testing.assert_array_equal(undo_letterbox(boxes, 0.5, (100, 120)), [[0, 0, 120, 100]])
    assert undo_letterbox(np.zeros((0, 4), np.float32), 0.5, (100, 120)).shape == (0, 4)


def test_only_a_larger_image_is_shrunk() -> None:
    small, wide = _noise(10, 20), _noise(2, 90)
    assert shrink(small, 20) is small
    assert shrink(wide, 30).shape == (1, 30, 3)
    assert shrink(wide, 90) is wide
