import numpy as np
import pytest
import torch
from PIL import Image

from boxwright.core.errors import UsageError
from boxwright.vision import transforms as T
from boxwright.vision.transforms import functional as F

PILLOW = {"nearest": 0, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5, "lanczos": 1}
SIZES = [(60, 80), (37, 53), (119, 161), (200, 300), (30, 400), (1, 1)]


def pillow_resize(image, size_hw, mode):
    return np.asarray(Image.fromarray(image).resize(size_hw[::-1], PILLOW[mode]))


def difference(a, b):
    return np.abs(a.astype(int) - b.astype(int))


@pytest.mark.parametrize("size_hw", SIZES)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiased_resizing_stays_within_the_documented_bound_of_pillow(photo, size_hw, mode):
    off = difference(F.resize(photo, size_hw, mode), pillow_resize(photo, size_hw, mode))
    assert off.mean() < 0.3
    # Pillow 13 shrinks before it enlarges, earlier ones go along the rows first; between the two, bicubic clips.
    one_side_grows = (size_hw[0] > 120) != (size_hw[1] > 160)
    clipped = mode == "bicubic" and one_side_grows
    assert np.percentile(off, 99) <= (3 if clipped else 1)
    assert off.max() <= (20 if clipped else 2)


@pytest.mark.parametrize("size_hw", SIZES)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "box", "hamming", "lanczos"])
def test_the_other_modes_equal_pillow(photo, size_hw, mode):
    expected = pillow_resize(photo, size_hw, "nearest" if mode.startswith("nearest") else mode)
    assert np.array_equal(F.resize(photo, size_hw, mode), expected)


def test_without_antialias_fine_stripes_survive_or_vanish_instead_of_turning_grey():
    stripes = np.tile(np.array([0, 255], np.uint8), (64, 32))
    smooth = F.resize(stripes, (16, 16))
    rough = F.resize(stripes, (17, 17), antialias=False)
    assert 110 < smooth.min() <= smooth.max() < 145
    assert rough.max() - rough.min() > 150


def test_one_number_sets_the_shorter_side_and_keeps_the_shape():
    wide, tall = np.zeros((100, 250, 3), np.uint8), np.zeros((250, 100, 3), np.uint8)
    assert F.resize(wide, 30).shape == (30, 75, 3)
    assert F.resize(tall, [30]).shape == (75, 30, 3)


def test_max_size_limits_the_longer_side():
    assert F.resize(np.zeros((100, 250, 3), np.uint8), 30, max_size=50).shape == (20, 50, 3)
    assert F.resize(np.zeros((100, 120, 3), np.uint8), 30, max_size=50).shape == (30, 36, 3)


def test_an_image_that_has_the_size_already_is_given_back_as_it_is(photo):
    assert F.resize(photo, (120, 160)) is photo


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(40, 60), (40, 60, 1), (40, 60, 3), (40, 60, 4)])
def test_types_and_channels_survive(dtype, shape):
    image = np.full(shape, 200, dtype)
    for size in ((20, 30), (80, 90)):
        resized = F.resize(image, size)
        assert resized.dtype == dtype
        assert resized.shape == (*size, *shape[2:])
        assert np.allclose(resized, 200)


def test_masks_of_any_type_resize_by_nearest():
    mask = np.arange(12, dtype=np.int64).reshape(3, 4)
    assert np.array_equal(F.resize(mask, (6, 8), "nearest")[::2, ::2], mask)
    assert F.resize(mask > 5, (6, 8), "nearest").dtype == np.bool_


def test_a_tensor_gives_a_tensor_and_a_pillow_image_a_pillow_image(photo):
    tensor = torch.from_numpy(photo.transpose(2, 0, 1).copy())
    expected = F.resize(photo, (50, 70))
    assert np.array_equal(F.resize(tensor, (50, 70)).numpy().transpose(1, 2, 0), expected)
    image = F.resize(Image.fromarray(photo), (50, 70))
    assert isinstance(image, Image.Image)
    assert np.array_equal(np.asarray(image), expected)


def test_a_read_only_array_is_resized_and_left_alone(photo):
    frozen = photo.copy()
    frozen.flags.writeable = False
    assert np.array_equal(F.resize(frozen, (50, 70)), F.resize(photo, (50, 70)))


def test_a_random_resized_crop_shows_a_part_within_the_given_area_and_ratio():
    torch.manual_seed(0)
    image = np.zeros((100, 200, 3), np.uint8)
    for _ in range(200):
        top, left, height, width = T.RandomResizedCrop.get_params(image, (0.1, 0.5), (0.5, 2.0))
        assert 0 <= top <= 100 - height
        assert 0 <= left <= 200 - width
        assert 0.09 < height * width / 20000 < 0.52
        assert 0.45 < width / height < 2.2


def test_a_random_resized_crop_that_never_fits_takes_the_largest_central_part():
    image = np.zeros((100, 200, 3), np.uint8)
    assert T.RandomResizedCrop.get_params(image, (1.0, 1.0), (0.5, 0.5)) == (0, 75, 100, 50)
    assert T.RandomResizedCrop.get_params(image, (1.0, 1.0), (4.0, 4.0)) == (25, 0, 50, 200)


def test_a_random_resized_crop_is_the_resized_part_that_its_parameters_name(photo):
    step = T.RandomResizedCrop(32)
    torch.manual_seed(3)
    got = step(photo)
    torch.manual_seed(3)
    top, left, height, width = step.get_params(photo, step.scale, step.ratio)
    assert np.array_equal(got, F.resize(photo[top : top + height, left : left + width], (32, 32)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: T.Resize(0),
        lambda: T.Resize(2**63),
        lambda: T.Resize((3, 4, 5)),
        lambda: T.Resize(2.5),
        lambda: T.Resize((3, 4), max_size=9),
        lambda: T.Resize(10, max_size=10),
        lambda: T.Resize(10, interpolation="cubist"),
        lambda: T.RandomResizedCrop(8, scale=(0.5, 0.1)),
        lambda: T.RandomResizedCrop(8, ratio=(0, 1)),
        lambda: F.resize("photo.jpg", 8),
        lambda: F.resize(np.zeros((4, 4), np.int64), (2, 2)),
        lambda: F.resize(np.zeros((4, 4, 5), np.uint8), (2, 2)),
        lambda: F.resize(np.zeros((4, 4), np.float32), (2, 2), "lanczos"),
        lambda: F.resize(torch.zeros(2, 3, 4, 4), (2, 2)),
    ],
)
def test_what_makes_no_sense_is_refused(make):
    with pytest.raises(UsageError):
        make()


def test_modes_are_understood_as_names_as_pillow_numbers_and_as_pillow_enums():
    assert T.Resize(4, 3).interpolation is T.InterpolationMode.BICUBIC
    assert T.Resize(4, "nearest").interpolation is T.InterpolationMode.NEAREST
    assert T.Resize(4, Image.Resampling.LANCZOS).interpolation is T.InterpolationMode.LANCZOS
