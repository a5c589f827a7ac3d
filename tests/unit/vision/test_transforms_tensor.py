import numpy as np
import pytest
import torch
from PIL import Image

from boxwright.core.errors import UsageError
from boxwright.vision import transforms as T
from boxwright.vision.transforms import functional as F


def test_to_tensor_gives_contiguous_floats_of_its_own_exactly_divided(photo):
    tensor = T.ToTensor()(photo)
    assert tensor.dtype == torch.float32
    assert tensor.is_contiguous()
    assert torch.equal(tensor, torch.from_numpy(photo.transpose(2, 0, 1).astype(np.float32)) / 255)
    tensor.zero_()
    assert photo.any()


@pytest.mark.parametrize("view", [np.s_[10:50, 20:90], np.s_[:, ::-1], np.s_[::2, ::3], np.s_[..., ::-1]])
def test_to_tensor_reads_views_as_they_look(photo, view):
    part = photo[view]
    assert torch.equal(F.pil_to_tensor(part), torch.from_numpy(part.transpose(2, 0, 1).copy()))


def test_to_tensor_follows_the_default_type(photo):
    torch.set_default_dtype(torch.float64)
    try:
        assert T.ToTensor()(photo).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("mode", "shape", "dtype"),
    [
        ("L", (1, 3, 4), torch.float32),
        ("RGBA", (4, 3, 4), torch.float32),
        ("1", (1, 3, 4), torch.float32),
        ("I", (1, 3, 4), torch.int32),
        ("F", (1, 3, 4), torch.float32),
    ],
)
def test_to_tensor_takes_every_mode_of_pillow(mode, shape, dtype):
    tensor = T.ToTensor()(Image.new(mode, (4, 3), 1))
    assert tensor.shape == shape
    assert tensor.dtype == dtype
    if mode == "1":
        assert tensor.min() == 1.0


def test_only_8_bit_values_are_scaled():
    assert T.ToTensor()(np.full((2, 2), 7, np.int32)).tolist() == [[[7, 7], [7, 7]]]
    assert T.PILToTensor()(np.full((2, 2), 7, np.uint8)).dtype == torch.uint8


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "F", "I", "HSV"])
def test_pillow_images_survive_the_way_through_a_tensor(mode):
    channels = len(Image.new(mode, (1, 1)).getbands())
    kind = {"F": np.float32, "I": np.int32}.get(mode, np.uint8)
    pixels = np.arange(12 * channels).reshape((3, 4, channels) if channels > 1 else (3, 4)).astype(kind)
    image = T.ToPILImage(mode)(pixels)
    assert image.mode == mode
    assert np.array_equal(np.asarray(image), pixels)
    assert np.array_equal(np.asarray(T.ToPILImage(mode)(T.PILToTensor()(image))), pixels)


def test_float_tensors_become_8_bit_images():
    image = T.ToPILImage()(torch.tensor([[[0.0, 1.0]]] * 3))
    assert image.mode == "RGB"
    assert np.asarray(image).tolist() == [[[0, 0, 0], [255, 255, 255]]]


@pytest.mark.parametrize(
    ("before", "dtype", "after"),
    [
        (torch.tensor([0, 255], dtype=torch.uint8), torch.float32, [0.0, 1.0]),
        (torch.tensor([0.0, 0.5, 1.0]), torch.uint8, [0, 127, 255]),
        (torch.tensor([0, 255], dtype=torch.uint8), torch.int16, [0, 255 * 128]),
        (torch.tensor([0, 32767], dtype=torch.int16), torch.uint8, [0, 255]),
        (torch.tensor([0.5]), torch.float64, [0.5]),
        (torch.tensor([7], dtype=torch.uint8), torch.uint8, [7]),
    ],
)
def test_converting_the_type_keeps_the_brightness(before, dtype, after):
    got = T.ConvertImageDtype(dtype)(before)
    assert got.dtype == dtype
    assert got.tolist() == after


def test_normalize_subtracts_and_divides_channel_by_channel():
    tensor = torch.rand(2, 3, 4, 5)
    got = T.Normalize([0.1, 0.2, 0.3], [0.5, 0.25, 2.0])(tensor)
    for channel, (mean, std) in enumerate([(0.1, 0.5), (0.2, 0.25), (0.3, 2.0)]):
        assert torch.allclose(got[:, channel], (tensor[:, channel] - mean) / std)


def test_normalize_leaves_its_input_alone_unless_told():
    tensor = torch.ones(3, 2, 2)
    T.Normalize([0.5], [0.5])(tensor)
    assert tensor.min() == 1
    same = T.Normalize([1.0], [0.5], inplace=True)(tensor)
    assert same is tensor
    assert tensor.max() == 0


def test_erasing_overwrites_one_rectangle_of_the_asked_size():
    torch.manual_seed(0)
    for _ in range(50):
        erased = T.RandomErasing(p=1, scale=(0.1, 0.3), value=(5, 6, 7))(torch.zeros(3, 40, 60))
        rows = torch.nonzero(erased[0].any(dim=1)).flatten()
        columns = torch.nonzero(erased[0].any(dim=0)).flatten()
        area = len(rows) * len(columns)
        assert 0.08 < area / 2400 < 0.33
        assert erased.sum() == area * 18
        assert erased[:, rows[0], columns[0]].tolist() == [5, 6, 7]


def test_erasing_writes_noise_and_works_in_place_when_told():
    torch.manual_seed(0)
    tensor = torch.zeros(3, 40, 60)
    assert T.RandomErasing(p=0)(tensor) is tensor
    assert T.RandomErasing(p=1, value="random")(tensor).std() > 0
    assert not tensor.any()
    assert T.RandomErasing(p=1, value="random", inplace=True)(tensor) is tensor
    assert tensor.any()


def test_erasing_that_never_fits_changes_nothing():
    tensor = torch.rand(3, 4, 4)
    assert torch.equal(T.RandomErasing(p=1, scale=(1.0, 1.0), ratio=(1, 1))(tensor), tensor)


@pytest.mark.parametrize(
    "make",
    [
        lambda: T.ToTensor()(torch.zeros(3, 2, 2)),
        lambda: T.ToTensor()([1, 2]),
        lambda: T.ToPILImage()(np.zeros((2, 2, 5), np.uint8)),
        lambda: T.ToPILImage("L")(np.zeros((2, 2, 3), np.uint8)),
        lambda: T.ToPILImage()(torch.zeros(1, 3, 2, 2)),
        lambda: T.ConvertImageDtype(torch.float32)(np.zeros((2, 2))),
        lambda: T.ConvertImageDtype(torch.int64)(torch.zeros(2)),
        lambda: T.Normalize([0.5], [0.0])(torch.zeros(3, 2, 2)),
        lambda: T.Normalize([0.5, 0.5], [1.0])(torch.zeros(3, 2, 2)),
        lambda: T.Normalize([0.5], [1.0])(torch.zeros(3, 2, 2, dtype=torch.uint8)),
        lambda: T.Normalize([0.5], [1.0])(np.zeros((2, 2, 3))),
        lambda: T.RandomErasing(value="noise"),
        lambda: T.RandomErasing(scale=(0.5, 2)),
        lambda: T.RandomErasing(p=1, value=(1, 2))(torch.zeros(3, 9, 9)),
        lambda: T.RandomErasing()(np.zeros((9, 9, 3))),
    ],
)
def test_what_makes_no_sense_is_refused(make):
    with pytest.raises(UsageError):
        make()
