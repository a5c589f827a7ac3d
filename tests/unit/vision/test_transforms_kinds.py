"""What kind of image goes in comes out, in every transform and function, whatever chance decides."""

import inspect

import numpy as np
import pytest
import torch
from PIL import Image

from boxwright.core.errors import UsageError
from boxwright.vision import transforms as T
from boxwright.vision.transforms import functional as F

# One or more of each transform that takes images; the rest take or give tensors, or other transforms.
STEPS = {
    "AugMix": [T.AugMix(), T.AugMix(severity=10, chain_depth=2, all_ops=False)],
    "AutoAugment": [T.AutoAugment(policy) for policy in T.AutoAugmentPolicy],
    "CenterCrop": [T.CenterCrop(50), T.CenterCrop(8)],
    "ColorJitter": [T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.ColorJitter()],
    "ElasticTransform": [T.ElasticTransform(), T.ElasticTransform(30.0, 0.0, "nearest", 7)],
    "FiveCrop": [T.FiveCrop(8)],
    "GaussianBlur": [T.GaussianBlur(3)],
    "Grayscale": [T.Grayscale(), T.Grayscale(3)],
    "Pad": [T.Pad(3), T.Pad((1, 2), padding_mode="edge")],
    "RandAugment": [T.RandAugment(), T.RandAugment(num_ops=4, magnitude=30)],
    "RandomAdjustSharpness": [T.RandomAdjustSharpness(2, p) for p in (0.0, 1.0)],
    "RandomAffine": [T.RandomAffine(10, translate=(0.1, 0.1), shear=5)],
    "RandomApply": [T.RandomApply([T.Pad(1)], p) for p in (0.0, 1.0)],
    "RandomAutocontrast": [T.RandomAutocontrast(p) for p in (0.0, 1.0)],
    "RandomChoice": [T.RandomChoice([T.Pad(1), T.CenterCrop(9)])],
    "RandomCrop": [T.RandomCrop(16, padding=2), T.RandomCrop(90, pad_if_needed=True)],
    "RandomEqualize": [T.RandomEqualize(p) for p in (0.0, 1.0)],
    "RandomGrayscale": [T.RandomGrayscale(p) for p in (0.0, 1.0)],
    "RandomHorizontalFlip": [T.RandomHorizontalFlip(p) for p in (0.0, 1.0)],
    "RandomInvert": [T.RandomInvert(p) for p in (0.0, 1.0)],
    "RandomOrder": [T.RandomOrder([T.Pad(1), T.CenterCrop(9)])],
    "RandomPerspective": [T.RandomPerspective(p=p) for p in (0.0, 1.0)],
    "RandomPosterize": [T.RandomPosterize(3, p) for p in (0.0, 1.0)],
    "RandomResizedCrop": [T.RandomResizedCrop(16)],
    "RandomRotation": [T.RandomRotation(30, expand=True)],
    "RandomSolarize": [T.RandomSolarize(99, p) for p in (0.0, 1.0)],
    "RandomVerticalFlip": [T.RandomVerticalFlip(p) for p in (0.0, 1.0)],
    "Resize": [T.Resize(20), T.Resize((40, 60)), T.Resize(9, "nearest")],
    "TenCrop": [T.TenCrop(8)],
    "TrivialAugmentWide": [T.TrivialAugmentWide(), T.TrivialAugmentWide(2, "bilinear", fill=9)],
}
OF_TENSORS = {"ConvertImageDtype", "LinearTransformation", "Normalize", "PILToTensor", "RandomErasing"}
OF_TENSORS |= {"ToPILImage", "ToTensor"}
OTHERS = {"AutoAugmentPolicy", "Compose", "InterpolationMode", "Lambda", "functional"}

CORNERS = [[0, 0], [59, 0], [59, 39], [0, 39]]
FUNCTIONS = {
    "adjust_brightness": (1.3,), "adjust_contrast": (0.7,), "adjust_gamma": (1.5,), "adjust_hue": (0.2,),
    "adjust_saturation": (1.4,), "adjust_sharpness": (2.0,), "affine": (10, (1, 2), 1.1, 3), "autocontrast": (),
    "center_crop": (20,), "crop": (1, 2, 8, 9), "elastic_transform": (torch.full((1, 40, 60, 2), 0.05),),
    "equalize": (), "five_crop": (8,), "gaussian_blur": (3,), "hflip": (), "invert": (), "pad": (2,),
    "perspective": (CORNERS, [[1, 2], *CORNERS[1:]]), "posterize": (3,), "resize": (20,),
    "resized_crop": (1, 2, 8, 9, 16), "rgb_to_grayscale": (3,), "rotate": (20,), "solarize": (99,), "ten_crop": (8,),
    "to_grayscale": (), "vflip": (),
}  # fmt: skip
OTHER_FUNCTIONS = {"convert_image_dtype", "dimensions", "erase", "get_dimensions", "get_image_num_channels"}
OTHER_FUNCTIONS |= {"get_image_size", "normalize", "pil_to_tensor", "to_pil_image", "to_tensor"}


@pytest.fixture
def picture(photo) -> Image.Image:
    return Image.fromarray(photo[:40, :60].copy())


def test_the_tables_below_name_every_transform_and_function() -> None:
    assert set(STEPS) | OF_TENSORS | OTHERS == set(T.__all__)
    public = {name for name, _ in inspect.getmembers(F, inspect.isfunction) if not name.startswith("_")}
    assert set(FUNCTIONS) | OTHER_FUNCTIONS == public


def parts(made) -> tuple:
    return made if isinstance(made, tuple) else (made,)


def run(step, image, seed: int) -> tuple:
    torch.manual_seed(seed)
    return parts(step(image))


@pytest.mark.parametrize("step", [step for steps in STEPS.values() for step in steps], ids=str)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_every_transform_gives_the_kind_that_it_takes_with_the_same_pixels(picture, step, mode: str) -> None:
    image = picture.convert(mode)
    array = np.asarray(image)
    tensor = torch.from_numpy(array.copy() if mode == "L" else array.transpose(2, 0, 1).copy())
    for seed in range(4):
        as_pillow, as_arrays, as_tensors = (run(step, kind, seed) for kind in (image, array, tensor))
        assert all(isinstance(made, Image.Image) for made in as_pillow)
        assert all(isinstance(made, np.ndarray) and made.dtype == np.uint8 for made in as_arrays)
        assert all(isinstance(made, torch.Tensor) and made.dtype == torch.uint8 for made in as_tensors)
        for pillow, pixels, planes in zip(as_pillow, as_arrays, as_tensors, strict=True):
            assert np.array_equal(np.asarray(pillow), pixels)
            flat = planes.numpy() if planes.ndim == 2 else planes.numpy().transpose(1, 2, 0)
            assert np.array_equal(flat.reshape(pixels.shape), pixels)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_gives_the_kind_that_it_takes_with_the_same_pixels(picture, name: str) -> None:
    function, arguments = getattr(F, name), FUNCTIONS[name]
    as_pillow = parts(function(picture, *arguments))
    as_arrays = parts(function(np.asarray(picture), *arguments))
    assert all(isinstance(made, Image.Image) for made in as_pillow)
    assert all(isinstance(made, np.ndarray) for made in as_arrays)
    assert all(np.array_equal(np.asarray(a), b) for a, b in zip(as_pillow, as_arrays, strict=True))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "I;16", "F"])
def test_modes_and_palettes_are_kept(picture, mode: str) -> None:
    image = picture.convert("I").convert(mode) if mode.startswith("I;") else picture.convert(mode)
    flipped = F.hflip(image)
    assert (flipped.mode, flipped.size) == (image.mode, image.size)
    expected = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    shown = "I" if mode.startswith("I") else "RGBA"  # in colours, so that the palette counts
    assert flipped.convert(shown).tobytes() == expected.convert(shown).tobytes()


def test_tensors_with_a_batch_are_transformed_and_whitened() -> None:
    matrix, mean = torch.rand(12, 12), torch.rand(12)
    batch = torch.rand(5, 3, 2, 2)
    made = T.LinearTransformation(matrix, mean)(batch)
    expected = torch.stack([((image.reshape(-1) - mean) @ matrix).reshape(3, 2, 2) for image in batch])
    torch.testing.assert_close(made, expected)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: T.AutoAugment("mnist"),
        lambda: T.RandAugment(magnitude=31),
        lambda: T.AugMix(severity=11),
        lambda: T.AugMix(alpha=0),
        lambda: T.TrivialAugmentWide(interpolation="lanczos"),
        lambda: T.RandAugment()(np.zeros((4, 4, 3), np.float32)),
        lambda: T.ElasticTransform(alpha=-1.0),
        lambda: F.elastic_transform(np.zeros((4, 4), np.uint8), torch.zeros(1, 4, 5, 2)),
        lambda: T.LinearTransformation(torch.eye(3), torch.ones(2)),
        lambda: T.LinearTransformation(torch.eye(3), torch.ones(3))(torch.ones(1, 2, 2)),
        lambda: F.adjust_gamma(np.zeros((4, 4), np.uint8), -1),
    ],
)
def test_wrong_arguments_and_images_are_refused(wrong) -> None:
    with pytest.raises(UsageError):
        wrong()


def test_a_policy_can_be_named() -> None:
    assert T.AutoAugment("svhn").policy is T.AutoAugmentPolicy.SVHN
