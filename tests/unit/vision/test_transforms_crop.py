import numpy as np
import pytest
import torch
from PIL import Image

from boxwright.core.errors import UsageError
from boxwright.vision import transforms as T
from boxwright.vision.transforms import functional as F


def test_a_crop_inside_the_image_is_that_part(photo):
    assert np.array_equal(F.crop(photo, 5, 10, 20, 30), photo[5:25, 10:40])


def test_a_crop_reaching_outside_is_black_there(photo):
    got = F.crop(photo, -2, 150, 10, 20)
    expected = np.asarray(Image.fromarray(photo).crop((150, -2, 170, 8)))
    assert np.array_equal(got, expected)
    assert not F.crop(photo, 500, 500, 4, 4).any()


def test_a_centre_crop_is_the_middle_and_a_larger_one_gets_a_margin():
    image = np.arange(1, 13, dtype=np.uint8).reshape(3, 4)
    assert np.array_equal(F.center_crop(image, (1, 2)), [[6, 7]])
    assert np.array_equal(F.center_crop(image, (5, 4))[1:4], image)
    assert F.center_crop(image, (5, 4))[0].sum() == 0


def test_five_and_ten_crops_come_in_the_order_of_the_corners():
    image = np.arange(9, dtype=np.uint8).reshape(3, 3)
    assert [int(part.item()) for part in T.FiveCrop(1)(image)] == [0, 2, 6, 8, 4]
    assert [int(part.item()) for part in T.TenCrop(1)(image)] == [0, 2, 6, 8, 4, 2, 0, 8, 6, 4]
    assert [int(part.item()) for part in T.TenCrop(1, vertical_flip=True)(image)][5:] == [6, 8, 0, 2, 4]


def test_random_crops_reach_every_place_and_stay_inside():
    torch.manual_seed(0)
    image = np.arange(30, dtype=np.uint8).reshape(5, 6)
    corners = {int(T.RandomCrop((4, 4))(image)[0, 0]) for _ in range(200)}
    assert corners == {0, 1, 2, 6, 7, 8}


def test_a_random_crop_pads_where_the_image_is_too_small():
    assert T.RandomCrop(10, pad_if_needed=True, fill=9)(np.zeros((4, 30), np.uint8)).shape == (10, 10)
    with pytest.raises(UsageError, match="pad_if_needed"):
        T.RandomCrop(10)(np.zeros((4, 30), np.uint8))


def test_padding_takes_one_two_or_four_numbers():
    image = np.ones((2, 2), np.uint8)
    assert F.pad(image, 1).shape == (4, 4)
    assert F.pad(image, [3]).shape == (8, 8)
    assert F.pad(image, (1, 2)).shape == (6, 4)
    assert np.array_equal(F.pad(image, (1, 0, 0, 2), fill=5), [[5, 1, 1], [5, 1, 1], [5, 5, 5], [5, 5, 5]])


@pytest.mark.parametrize(
    ("mode", "row"), [("edge", [1, 1, 1, 2, 3, 3]), ("reflect", [3, 2, 1, 2, 3, 2]), ("symmetric", [2, 1, 1, 2, 3, 3])]
)
def test_margins_repeat_or_mirror_the_image(mode, row):
    image = np.array([[1, 2, 3]], np.uint8)
    assert F.pad(image, (2, 0, 1, 0), padding_mode=mode).tolist() == [row]


def test_each_channel_can_have_its_own_fill():
    padded = F.pad(np.zeros((1, 1, 3), np.uint8), 1, fill=(1, 2, 3))
    assert padded[0, 0].tolist() == [1, 2, 3]
    assert padded[1, 1].tolist() == [0, 0, 0]
    with pytest.raises(UsageError, match="2 values"):
        F.pad(np.zeros((1, 1, 3), np.uint8), 1, fill=(1, 2))


def test_negative_padding_cuts_off():
    image = np.arange(9, dtype=np.uint8).reshape(3, 3)
    assert F.pad(image, (-1, 0, 0, -2)).tolist() == [[1, 2]]
    with pytest.raises(UsageError, match="leaves nothing"):
        F.pad(image, -2)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.bool_])
@pytest.mark.parametrize("channels", [None, 1, 2, 3, 4, 5])
def test_flips_mirror_every_kind_of_array(dtype, channels):
    shape = (4, 5) if channels is None else (4, 5, channels)
    image = (np.arange(np.prod(shape)) % 7).reshape(shape).astype(dtype)
    assert np.array_equal(F.hflip(image), image[:, ::-1])
    assert np.array_equal(F.vflip(image), image[::-1])
    assert F.hflip(image).flags.c_contiguous


def test_random_flips_follow_their_probability(photo):
    torch.manual_seed(0)
    flipped = sum(T.RandomHorizontalFlip(0.25)(photo) is not photo for _ in range(400))
    assert 70 < flipped < 130
    assert np.array_equal(T.RandomVerticalFlip(1.0)(photo), photo[::-1])
    assert T.RandomVerticalFlip(0.0)(photo) is photo


def test_tensors_are_cropped_and_flipped_in_their_last_two_axes():
    tensor = torch.arange(24).reshape(2, 3, 4)
    assert torch.equal(F.hflip(tensor), tensor.flip(-1))
    assert torch.equal(F.crop(tensor, 1, 2, 2, 2), tensor[:, 1:, 2:])
    assert F.pad(tensor, 1).shape == (2, 5, 6)
    assert torch.equal(F.vflip(tensor[0]), tensor[0].flip(0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: T.Pad((1, 2, 3)),
        lambda: T.Pad(1.5),
        lambda: T.Pad(1, padding_mode="wrap"),
        lambda: T.RandomCrop(4, padding_mode="wrap"),
        lambda: T.CenterCrop(-1),
        lambda: T.RandomHorizontalFlip(1.5),
        lambda: F.crop(np.zeros((4, 4), np.uint8), 0, 0, 0, 2),
        lambda: T.FiveCrop(9)(np.zeros((4, 4), np.uint8)),
        lambda: F.hflip(np.zeros((0, 4), np.uint8)),
        lambda: F.hflip(np.zeros((1, 1, 4, 4), np.uint8)),
    ],
)
def test_what_makes_no_sense_is_refused(make):
    with pytest.raises(UsageError):
        make()
