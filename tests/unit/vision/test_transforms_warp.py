import math

import numpy as np
import pytest
import torch
from PIL import Image

from boxwright.core.errors import UsageError
from boxwright.vision import transforms as T
from boxwright.vision.transforms import functional as F


def share_of_equal_pixels(a, b, tolerance=0):
    return (np.abs(a.astype(int) - b.astype(int)) <= tolerance).mean()


@pytest.mark.parametrize("angle", [-75.0, 10.0, 33.3, 120.0])
@pytest.mark.parametrize("expand", [False, True])
def test_turning_by_nearest_gives_pillows_pixels(photo, angle, expand):
    got = F.rotate(photo, angle, expand=expand, fill=(9, 8, 7))
    expected = np.asarray(Image.fromarray(photo).rotate(angle, 0, expand, fillcolor=(9, 8, 7)))
    assert got.shape == expected.shape
    assert share_of_equal_pixels(got, expected) > 0.99


@pytest.mark.parametrize("angle", [-75.0, 10.0, 33.3])
def test_turning_by_bilinear_stays_near_pillow_but_for_the_rim(photo, angle):
    got = F.rotate(photo, angle, "bilinear", center=(40, 60))
    expected = np.asarray(Image.fromarray(photo).rotate(angle, 2, center=(40, 60)))
    assert share_of_equal_pixels(got, expected, tolerance=3) > 0.97


@pytest.mark.parametrize("angle", [0, 90, 180, 270, -90, 360, 450])
def test_quarter_turns_move_pixels_and_invent_none(photo, angle):
    odd = photo[:51, :80]
    assert np.array_equal(F.rotate(odd, angle, expand=True), np.rot90(odd, (angle // 90) % 4))


def test_a_quarter_turn_is_counter_clockwise_and_keeps_the_size_without_expand():
    image = np.zeros((5, 9), np.uint8)
    image[0, 4] = 1
    turned = F.rotate(image, 90)
    assert turned.shape == image.shape
    assert np.argwhere(turned).tolist() == [[2, 2]]


def test_affine_turns_clockwise_and_shifts_right_and_down():
    image = np.zeros((5, 5), np.uint8)
    image[0, 2] = 1
    assert np.argwhere(F.affine(image, 90, (0, 0), 1.0, 0)).tolist() == [[2, 4]]
    assert np.argwhere(F.affine(image, 0, (2, 3), 1.0, 0)).tolist() == [[3, 4]]


def test_affine_equals_pillows_transform_of_the_inverse_matrix(photo):
    got = F.affine(photo, 0, (5, -3), 1.25, (12.0, 0.0), fill=(3, 3, 3))
    height, width = photo.shape[:2]
    shear = math.tan(math.radians(12))
    # out = 1.25 * [[1, -shear], [0, 1]] (in - middle) + middle + shift, turned round for Pillow.
    inverse = np.linalg.inv(1.25 * np.array([[1, -shear], [0, 1]]))
    middle = np.array([width / 2, height / 2])
    offset = middle - inverse @ (middle + np.array([5, -3]))
    data = (*inverse[0], offset[0], *inverse[1], offset[1])
    expected = np.asarray(Image.fromarray(photo).transform((width, height), 0, data, 0, fillcolor=(3, 3, 3)))
    assert share_of_equal_pixels(got, expected) > 0.99


def test_perspective_moves_corners_to_where_it_is_told(photo):
    corners = [[0, 0], [160, 0], [160, 120], [0, 120]]
    quarter = [[0, 0], [80, 0], [80, 60], [0, 60]]
    doubled = F.perspective(photo, quarter, corners, "nearest")
    assert np.array_equal(doubled, photo[:60, :80].repeat(2, axis=0).repeat(2, axis=1))
    moved = F.perspective(photo, corners, [[x + 10, y + 5] for x, y in corners], "nearest", fill=1)
    assert np.array_equal(moved[5:, 10:], photo[:-5, :-10])
    assert (moved[:5] == 1).all()
    assert (moved[:, :10] == 1).all()


def test_a_perspective_that_moves_nothing_changes_nothing(photo):
    start, end = T.RandomPerspective.get_params(160, 120, 0.0)
    assert start == end
    assert np.array_equal(F.perspective(photo, start, end), photo)


def test_random_perspective_keeps_each_corner_in_its_quarter():
    torch.manual_seed(0)
    for _ in range(100):
        start, end = T.RandomPerspective.get_params(100, 60, 0.5)
        for (x, y), (new_x, new_y) in zip(start, end, strict=True):
            assert abs(x - new_x) <= 25
            assert abs(y - new_y) <= 15


def test_random_affine_draws_from_the_given_ranges_and_shifts_by_whole_pixels():
    torch.manual_seed(0)
    for _ in range(100):
        angle, shift, scale, shear = T.RandomAffine.get_params((-5, 10), (0.1, 0.2), (0.5, 2), (-3, 3, 4, 6), (200, 50))
        assert -5 <= angle <= 10
        assert abs(shift[0]) <= 20
        assert abs(shift[1]) <= 10
        assert all(isinstance(pixels, int) for pixels in shift)
        assert 0.5 <= scale <= 2
        assert -3 <= shear[0] <= 3
        assert 4 <= shear[1] <= 6


def test_random_rotation_turns_by_the_angle_it_draws(photo):
    step = T.RandomRotation((20, 40), "bilinear")
    torch.manual_seed(1)
    angle = step.get_params(step.degrees)
    torch.manual_seed(1)
    assert 20 <= angle <= 40
    assert np.array_equal(step(photo), F.rotate(photo, angle, "bilinear"))


def test_grey_images_and_tensors_keep_their_form(photo):
    grey = photo[..., :1]
    tensor = torch.from_numpy(photo.transpose(2, 0, 1).copy())
    assert F.rotate(grey, 20).shape == grey.shape
    assert F.rotate(grey[..., 0], 20).shape == grey.shape[:2]
    turned = F.rotate(tensor, 20, fill=[1, 2, 3])
    assert np.array_equal(turned.numpy().transpose(1, 2, 0), F.rotate(photo, 20, fill=[1, 2, 3]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: T.RandomRotation(-1),
        lambda: T.RandomRotation((1, 2, 3)),
        lambda: T.RandomRotation((5, 1)),
        lambda: T.RandomRotation(5, "lanczos"),
        lambda: T.RandomRotation(5, center=(1, 2, 3)),
        lambda: T.RandomAffine(5, translate=(0.1, 2)),
        lambda: T.RandomAffine(5, scale=(0, 1)),
        lambda: T.RandomAffine(5, shear=(1, 2, 3)),
        lambda: T.RandomPerspective(distortion_scale=2),
        lambda: F.affine(np.zeros((4, 4), np.uint8), 0, (0, 0), 0.0, 0),
        lambda: F.affine(np.zeros((4, 4), np.uint8), 0, (0,), 1.0, 0),
        lambda: F.perspective(np.zeros((4, 4), np.uint8), [[0, 0]], [[0, 0]]),
        lambda: F.rotate(np.zeros((4, 4, 3), np.uint8), 5, fill=(1, 2)),
        lambda: F.rotate(np.zeros((4, 4), np.int64), 5),
    ],
)
def test_what_makes_no_sense_is_refused(make):
    with pytest.raises(UsageError):
        make()
