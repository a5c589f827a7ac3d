"""A Pillow image goes in, a Pillow image comes out: in every transform, whatever chance decides."""

import numpy as np
import pytest
import torch
from PIL import Image

from boxwright.vision import transforms as T
from boxwright.vision.transforms import functional as F

EVERY = [
    T.Resize(20), T.RandomResizedCrop(16), T.CenterCrop(50), T.RandomCrop(16, padding=2), T.Pad(3),
    T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.Grayscale(), T.Grayscale(3), T.GaussianBlur(3),
    T.RandomRotation(30, expand=True), T.RandomAffine(10),
]  # fmt: skip
RANDOM = [
    T.RandomHorizontalFlip, T.RandomVerticalFlip, T.RandomGrayscale, T.RandomInvert, T.RandomAutocontrast,
    T.RandomEqualize, T.RandomPerspective, lambda p: T.RandomPosterize(3, p), lambda p: T.RandomSolarize(99, p),
    lambda p: T.RandomAdjustSharpness(2, p), lambda p: T.RandomApply([T.Pad(1)], p),
]  # fmt: skip


@pytest.fixture
def picture(photo) -> Image.Image:
    return Image.fromarray(photo[:40, :60].copy())


@pytest.mark.parametrize("step", [*EVERY, *(make(p) for make in RANDOM for p in (0.0, 1.0))], ids=str)
def test_a_pillow_image_stays_one_and_has_the_pixels_of_an_array(picture, step) -> None:
    torch.manual_seed(3)
    made = step(picture)
    torch.manual_seed(3)
    pixels = step(np.asarray(picture))
    assert isinstance(made, Image.Image)
    assert np.array_equal(np.asarray(made), pixels)


def test_several_crops_are_pillow_images(picture) -> None:
    assert all(isinstance(crop, Image.Image) for crop in (*T.FiveCrop(8)(picture), *T.TenCrop(8)(picture)))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "I;16", "F"])
def test_modes_and_palettes_are_kept(picture, mode: str) -> None:
    image = picture.convert("I").convert(mode) if mode.startswith("I;") else picture.convert(mode)
    flipped = F.hflip(image)
    assert (flipped.mode, flipped.size) == (image.mode, image.size)
    expected = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    shown = "I" if mode.startswith("I") else "RGBA"  # in colours, so that the palette counts
    assert flipped.convert(shown).tobytes() == expected.convert(shown).tobytes()
