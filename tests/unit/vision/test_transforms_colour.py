import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from boxwright.core.errors import UsageError
from boxwright.vision import transforms as T
from boxwright.vision.transforms import functional as F


def largest_difference(a, b):
    return int(np.abs(np.asarray(a).astype(int) - np.asarray(b).astype(int)).max())


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.7, 4.0])
@pytest.mark.parametrize(
    ("change", "enhancer", "bound"),
    [
        (F.adjust_brightness, ImageEnhance.Brightness, 0),
        (F.adjust_contrast, ImageEnhance.Contrast, 1),
        (F.adjust_saturation, ImageEnhance.Color, 1),
        (F.adjust_sharpness, ImageEnhance.Sharpness, 1),
    ],
)
def test_enhancements_equal_pillows_within_a_level(photo, factor, change, enhancer, bound):
    expected = enhancer(Image.fromarray(photo)).enhance(factor)
    # A saturation far from 1 multiplies the level by which the two greys may differ.
    assert largest_difference(change(photo, factor), expected) <= bound * max(1, abs(factor - 1))


@pytest.mark.parametrize("factor", [-0.5, -0.2, 0.05, 0.3, 0.5])
def test_hue_stays_near_the_exact_rotation_and_pillows_coarser_one(photo, factor):
    hue, saturation, value = Image.fromarray(photo).convert("HSV").split()
    moved = Image.fromarray(((np.asarray(hue).astype(int) + int(factor * 255)) % 256).astype(np.uint8))
    expected = np.asarray(Image.merge("HSV", (moved, saturation, value)).convert("RGB")).astype(int)
    got = F.adjust_hue(photo, factor).astype(int)
    exact = F.adjust_hue(photo.astype(np.float32) / 255, factor) * 255
    assert np.abs(got - exact).mean() < 1
    assert np.abs(got - exact).max() < 11
    # The test image is far more colourful than a photo, and Pillow's own steps are the larger part of this.
    assert np.abs(got - expected).mean() < 3
    assert np.abs(got - expected).max() < 20


def test_a_hue_shift_by_a_third_turns_red_into_green():
    red = np.zeros((2, 2, 3), np.uint8)
    red[..., 0] = 240
    turned = F.adjust_hue(red, 1 / 3)[0, 0]
    assert turned[1] == 240
    assert turned[0] < 5
    assert turned[2] < 5


def test_grey_follows_pillows_weights(photo):
    assert largest_difference(F.rgb_to_grayscale(photo), Image.fromarray(photo).convert("L")) <= 1
    triple = T.Grayscale(3)(photo)
    assert triple.shape == photo.shape
    assert np.array_equal(triple[..., 0], triple[..., 2])
    assert T.Grayscale()(photo).shape == photo.shape[:2]


def test_floats_run_from_0_to_1_and_follow_the_8_bit_result(photo):
    floats = photo.astype(np.float32) / 255
    for change, factor in ((F.adjust_brightness, 1.4), (F.adjust_contrast, 0.5), (F.adjust_saturation, 1.4)):
        assert np.abs(change(floats, factor) * 255 - change(photo, factor)).max() < 2.1
    assert np.abs(F.adjust_hue(floats, 0.2) * 255 - F.adjust_hue(photo, 0.2)).mean() < 1
    assert np.abs(F.rgb_to_grayscale(floats.astype(np.float64)) * 255 - F.rgb_to_grayscale(photo)).max() < 1


def test_grey_images_have_no_hue_and_no_saturation(photo):
    grey = photo[..., 0]
    assert np.array_equal(F.adjust_hue(grey, 0.3), grey)
    assert np.array_equal(F.adjust_saturation(grey[..., None], 0.3), grey[..., None])
    assert F.adjust_brightness(grey, 0.5).max() <= 127


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (F.invert, ImageOps.invert),
        (F.autocontrast, ImageOps.autocontrast),
        (F.equalize, ImageOps.equalize),
        (lambda image: F.posterize(image, 3), lambda image: ImageOps.posterize(image, 3)),
        (lambda image: F.posterize(image, 8), lambda image: ImageOps.posterize(image, 8)),
        (lambda image: F.solarize(image, 100), lambda image: ImageOps.solarize(image, 100)),
    ],
)
def test_changes_of_tone_equal_pillows(photo, change, expected):
    dull = photo // 3 + 40
    assert np.array_equal(change(dull), np.asarray(expected(Image.fromarray(dull))))


def test_a_plain_image_has_nothing_to_stretch_or_spread():
    plain = np.full((5, 5, 3), 90, np.uint8)
    assert np.array_equal(F.autocontrast(plain), plain)
    assert np.array_equal(F.equalize(plain), plain)
    assert np.array_equal(F.autocontrast(plain.astype(np.float32) / 255), plain.astype(np.float32) / 255)


def test_floats_are_inverted_solarized_and_stretched_between_0_and_1():
    floats = np.array([[0.2, 0.4, 0.6]], np.float32)
    assert np.allclose(F.invert(floats), [[0.8, 0.6, 0.4]])
    assert np.allclose(F.solarize(floats, 0.5), [[0.2, 0.4, 0.4]])
    assert np.allclose(F.autocontrast(floats), [[0, 0.5, 1]])


@pytest.mark.parametrize(("kernel", "sigma"), [(3, 0.5), (5, 1.3), ((9, 3), (2.0, 0.7)), (7, None)])
def test_blur_is_the_normalized_gaussian_with_mirrored_edges(photo, kernel, sigma):
    window = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    spread = sigma if isinstance(sigma, tuple) else [sigma if sigma else 0.15 * k + 0.35 for k in window]
    result = photo.astype(np.float64)
    for axis, size, width in ((1, window[0], spread[0]), (0, window[1], spread[1])):
        steps = np.arange(size) - size // 2
        weights = np.exp(-0.5 * (steps / width) ** 2)
        margins = [(size // 2, size // 2) if axis == a else (0, 0) for a in range(3)]
        padded = np.pad(result, margins, mode="reflect")
        parts = [np.take(padded, np.arange(photo.shape[axis]) + k, axis) * weights[k] for k in range(size)]
        result = np.sum(parts, axis=0) / weights.sum()
    assert np.abs(F.gaussian_blur(photo, kernel, sigma) - result).max() <= 2


def test_jitter_applies_its_four_changes_in_the_drawn_order(photo):
    step = T.ColorJitter(0.4, 0.4, 0.4, 0.1)
    torch.manual_seed(5)
    order, *factors = step.get_params(step.brightness, step.contrast, step.saturation, step.hue)
    expected = photo
    for index in order.tolist():
        change = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)[index]
        expected = change(expected, factors[index])
    torch.manual_seed(5)
    assert np.array_equal(step(photo), expected)
    assert 0.6 <= factors[0] <= 1.4
    assert -0.1 <= factors[3] <= 0.1


def test_jitter_without_arguments_changes_nothing(photo):
    assert T.ColorJitter()(photo) is photo
    assert T.ColorJitter(2.0).brightness == (0.0, 3.0)


def test_random_changes_happen_always_or_never_as_told(photo):
    steps = [
        (T.RandomGrayscale, ()),
        (T.RandomInvert, ()),
        (T.RandomPosterize, (2,)),
        (T.RandomSolarize, (100,)),
        (T.RandomAdjustSharpness, (3.0,)),
        (T.RandomAutocontrast, ()),
        (T.RandomEqualize, ()),
    ]
    for kind, arguments in steps:
        assert kind(*arguments, p=0.0)(photo) is photo
        changed = kind(*arguments, p=1.0)(photo // 2)
        assert changed.shape == photo.shape
        assert not np.array_equal(changed, photo // 2), kind


@pytest.mark.parametrize(
    "make",
    [
        lambda: T.ColorJitter(-1),
        lambda: T.ColorJitter((2, 1)),
        lambda: T.ColorJitter((1, 2, 3)),
        lambda: T.ColorJitter(hue=0.7),
        lambda: T.Grayscale(2),
        lambda: T.GaussianBlur(4),
        lambda: T.GaussianBlur(3, (0, 1)),
        lambda: T.RandomPosterize(9),
        lambda: T.RandomAdjustSharpness(-1),
        lambda: F.gaussian_blur(np.zeros((4, 4), np.uint8), 3, 0.0),
        lambda: F.adjust_hue(np.zeros((4, 4, 3), np.uint8), 0.6),
        lambda: F.adjust_brightness(np.zeros((4, 4, 3), np.uint8), -1),
        lambda: F.adjust_brightness(np.zeros((4, 4, 4), np.uint8), 1.1),
        lambda: F.adjust_brightness(np.zeros((4, 4, 3), np.uint16), 1.1),
        lambda: F.posterize(np.zeros((4, 4), np.float32), 3),
    ],
)
def test_what_makes_no_sense_is_refused(make):
    with pytest.raises(UsageError):
        make()
