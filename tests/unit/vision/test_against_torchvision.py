"""The same names, arguments, random draws and pixels as torchvision, where torchvision is installed."""

import inspect

import numpy as np
import pytest
import torch
from PIL import Image
from support.thirdparty import import_or_skip

from boxwright.vision import datasets, models, transforms

torchvision = import_or_skip("torchvision")

# (name, arguments, largest mean difference, largest 99th percentile of differences), in levels of 255.
EXACT, NEAR = (0.0, 0), (0.3, 1)
# Warped by a few degrees, posterized or solarized: a pixel whose place or value is rounded the other way is far off.
POLICY = (1.5, 25)
ON_IMAGES = [
    ("Resize", {"size": 48}, NEAR),
    ("Resize", {"size": (200, 90)}, NEAR),
    ("Resize", {"size": 300}, NEAR),
    ("Resize", {"size": 60, "max_size": 70}, NEAR),
    ("Resize", {"size": (50, 60), "interpolation": "nearest"}, EXACT),
    ("Resize", {"size": (50, 60), "interpolation": "bicubic"}, NEAR),
    ("Resize", {"size": (50, 60), "interpolation": "lanczos"}, EXACT),
    ("CenterCrop", {"size": 77}, EXACT),
    ("CenterCrop", {"size": (301, 50)}, EXACT),
    ("RandomCrop", {"size": (50, 60), "padding": 5, "fill": 9}, EXACT),
    ("RandomCrop", {"size": 200, "pad_if_needed": True, "padding_mode": "reflect"}, EXACT),
    ("RandomResizedCrop", {"size": 64}, NEAR),
    ("RandomResizedCrop", {"size": 64, "scale": (0.9, 1.0), "ratio": (3.0, 4.0)}, NEAR),
    ("Pad", {"padding": (1, 2, 3, 4), "fill": (7, 8, 9)}, EXACT),
    ("Pad", {"padding": (5, 6), "padding_mode": "symmetric"}, EXACT),
    ("RandomHorizontalFlip", {}, EXACT),
    ("RandomVerticalFlip", {}, EXACT),
    ("RandomRotation", {"degrees": 40}, (2.0, 60)),
    ("RandomRotation", {"degrees": (90, 90), "expand": True}, EXACT),
    ("RandomRotation", {"degrees": 40, "expand": True, "interpolation": "bilinear", "fill": (9, 8, 7)}, (3.0, 60)),
    ("RandomRotation", {"degrees": 40, "center": (10, 20)}, (2.0, 60)),
    ("RandomAffine", {"degrees": 20, "translate": (0.1, 0.2), "scale": (0.8, 1.2), "shear": 10}, (2.0, 60)),
    ("RandomAffine", {"degrees": 9, "shear": (-5, 5, -8, 8), "interpolation": "bilinear", "fill": 5}, (3.0, 60)),
    ("RandomPerspective", {"p": 1.0}, (3.0, 60)),
    ("RandomPerspective", {"distortion_scale": 0.3, "interpolation": "nearest"}, (2.0, 60)),
    ("ColorJitter", {"brightness": 0.7}, EXACT),
    ("ColorJitter", {"contrast": (0.5, 2.0)}, (0.5, 1)),
    ("ColorJitter", {"saturation": 0.9}, NEAR),
    ("ColorJitter", {"hue": 0.3}, (3.0, 20)),
    ("ColorJitter", {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}, (4.0, 25)),
    ("Grayscale", {}, NEAR),
    ("Grayscale", {"num_output_channels": 3}, NEAR),
    ("RandomGrayscale", {"p": 0.5}, NEAR),
    ("GaussianBlur", {"kernel_size": 5}, NEAR),
    ("GaussianBlur", {"kernel_size": (9, 3), "sigma": (0.5, 3.0)}, NEAR),
    ("RandomInvert", {}, EXACT),
    ("RandomPosterize", {"bits": 3}, EXACT),
    ("RandomSolarize", {"threshold": 100}, EXACT),
    ("RandomAdjustSharpness", {"sharpness_factor": 2.5}, NEAR),
    ("RandomAutocontrast", {}, EXACT),
    ("RandomEqualize", {}, EXACT),
    ("FiveCrop", {"size": 40}, EXACT),
    ("TenCrop", {"size": (40, 50), "vertical_flip": True}, EXACT),
    ("AutoAugment", {}, POLICY),
    ("AutoAugment", {"policy": "cifar10", "fill": (1, 2, 3)}, POLICY),
    ("AutoAugment", {"policy": "svhn", "interpolation": "bilinear"}, POLICY),
    ("RandAugment", {}, POLICY),
    ("RandAugment", {"num_ops": 3, "magnitude": 20, "fill": 9}, POLICY),
    ("TrivialAugmentWide", {}, POLICY),
    ("AugMix", {}, POLICY),
    ("AugMix", {"severity": 8, "chain_depth": 2, "all_ops": False}, POLICY),
    ("ElasticTransform", {}, NEAR),
    ("ElasticTransform", {"alpha": (20.0, 60.0), "sigma": (2.0, 7.0), "fill": (7, 8, 9)}, NEAR),
    ("ElasticTransform", {"alpha": 90.0, "interpolation": "nearest"}, EXACT),
    ("ToTensor", {}, EXACT),
    ("PILToTensor", {}, EXACT),
]
WHITEN = torch.rand(3 * 12 * 16, 3 * 12 * 16, generator=torch.Generator().manual_seed(0)) / 100
ON_FLOAT_TENSORS = [
    ("Normalize", {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.4)}, 0.0),
    ("LinearTransformation", {"transformation_matrix": WHITEN, "mean_vector": WHITEN[0]}, 1e-4),
    ("RandomErasing", {"value": (1, 2, 3)}, 0.0),
    ("RandomErasing", {"p": 0.9, "value": "random"}, 0.0),
    ("ConvertImageDtype", {"dtype": torch.uint8}, 0.0),
    ("ConvertImageDtype", {"dtype": torch.float64}, 0.0),
    ("Resize", {"size": (50, 60)}, 1e-5),
    ("RandomResizedCrop", {"size": 50}, 1e-5),
    ("Pad", {"padding": 3, "fill": 1}, 0.0),
    ("RandomHorizontalFlip", {}, 0.0),
    ("GaussianBlur", {"kernel_size": 5}, 1e-5),
    ("ColorJitter", {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}, 1e-3),
    ("RandomInvert", {}, 1e-6),
    ("RandomSolarize", {"threshold": 0.5}, 1e-6),
    ("RandomAutocontrast", {"p": 1.0}, 1e-5),
    ("RandomAdjustSharpness", {"sharpness_factor": 2.0, "p": 1.0}, 1e-5),
]


def theirs(name, arguments):
    modes = torchvision.transforms.InterpolationMode
    policies = torchvision.transforms.AutoAugmentPolicy
    kinds = {"interpolation": modes, "policy": policies}
    known = {key: kinds[key](value) if key in kinds else value for key, value in arguments.items()}
    return getattr(torchvision.transforms, name)(**known)


def parts(result):
    results = result if isinstance(result, tuple) else (result,)
    return [np.asarray(part).astype(np.float64) for part in results]


def both(name, arguments, image):
    """Yield pairs of results (theirs, ours) for five seeds; both must have drawn as many random numbers."""
    for seed in range(5):
        torch.manual_seed(seed)
        expected, next_draw = parts(theirs(name, arguments)(image)), torch.rand(1)
        torch.manual_seed(seed)
        got = parts(getattr(transforms, name)(**arguments)(image))
        assert torch.equal(torch.rand(1), next_draw)
        yield from zip(expected, got, strict=True)


@pytest.mark.parametrize(("name", "arguments", "bounds"), ON_IMAGES)
def test_images_come_out_as_torchvision_makes_them(photo, name, arguments, bounds):
    scale = 255 if name == "ToTensor" else 1
    for expected, got in both(name, arguments, Image.fromarray(photo)):
        assert got.shape == expected.shape
        off = np.abs(got - expected) * scale
        assert off.mean() <= bounds[0]
        assert np.percentile(off, 99) <= bounds[1]


@pytest.mark.parametrize(("name", "arguments", "bound"), ON_FLOAT_TENSORS)
def test_tensors_come_out_as_torchvision_makes_them(photo, name, arguments, bound):
    part = photo[:12, :16] if name == "LinearTransformation" else photo
    tensor = torch.from_numpy(part.transpose(2, 0, 1).copy()).float() / 255
    for expected, got in both(name, arguments, tensor):
        assert got.shape == expected.shape
        assert np.abs(got - expected).max() <= bound


@pytest.mark.parametrize("before", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("after", [torch.uint8, torch.int16, torch.int32, torch.float32])
def test_types_convert_as_torchvision_does_it(before, after):
    values = torch.arange(0, torch.iinfo(before).max, torch.iinfo(before).max // 50, dtype=before)
    expected = torchvision.transforms.ConvertImageDtype(after)(values)
    got = transforms.ConvertImageDtype(after)(values)
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)


def shared_names(ours, upstream):
    return [name for name in ours.__all__ if inspect.isclass(getattr(ours, name)) and hasattr(upstream, name)]


@pytest.mark.parametrize(
    ("ours", "upstream"),
    [(transforms, torchvision.transforms), (datasets, torchvision.datasets)],
    ids=lambda m: m.__name__,
)
def test_arguments_have_the_same_names_order_and_defaults(ours, upstream):
    checked = 0
    for name in shared_names(ours, upstream):
        if name in ("InterpolationMode", "AutoAugmentPolicy", "VisionDataset"):
            continue
        wanted = inspect.signature(getattr(upstream, name)).parameters
        mine = inspect.signature(getattr(ours, name)).parameters
        positional = [key for key, value in mine.items() if value.kind is not inspect.Parameter.KEYWORD_ONLY]
        assert positional == list(wanted), name
        for key, parameter in wanted.items():
            default, given = parameter.default, mine[key].default
            if callable(default) and key == "loader":
                continue
            assert getattr(given, "value", given) == getattr(default, "value", default), (name, key)
        checked += 1
    assert checked >= (39 if ours is transforms else 31)


def test_an_image_folder_holds_the_same_samples(tmp_path, photo):
    for name in ("dog/b.png", "dog/deep/a.png", "cat/c.JPG", "cat/notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("no image") if name.endswith("txt") else Image.fromarray(photo).save(path)
    upstream, mine = torchvision.datasets.ImageFolder(str(tmp_path)), datasets.ImageFolder(str(tmp_path))
    assert mine.samples == upstream.samples
    assert mine.class_to_idx == upstream.class_to_idx
    for index in range(len(mine)):
        assert np.abs(mine[index][0].astype(int) - np.asarray(upstream[index][0])).max() <= 4


@pytest.mark.parametrize("name", ["CIFAR10", "CIFAR100"])
def test_the_checksums_of_cifar_are_torchvisions(name):
    upstream, mine = getattr(torchvision.datasets, name), getattr(datasets, name)
    assert [list(item) for item in mine.train_list + mine.test_list] == upstream.train_list + upstream.test_list
    assert mine.meta == (upstream.meta["filename"], upstream.meta["md5"])
    assert (mine.base_folder, mine.names_key) == (upstream.base_folder, upstream.meta["key"])


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST", "KMNIST"])
def test_the_checksums_and_classes_of_mnist_are_torchvisions(name):
    upstream, mine = getattr(torchvision.datasets, name), getattr(datasets, name)
    assert mine.resources == upstream.resources
    assert mine.classes == upstream.classes


def test_the_checksums_and_names_of_the_other_sets_are_torchvisions():
    upstream = torchvision.datasets
    for name in ("USPS", "SVHN"):
        files = {key: tuple(value[1:]) for key, value in getattr(upstream, name).split_list.items()}
        assert getattr(datasets, name).split_list == files
    assert datasets.STL10.files == dict(map(tuple, upstream.STL10.train_list + upstream.STL10.test_list))
    assert datasets.SEMEION.md5_checksum == upstream.SEMEION.md5_checksum
    assert datasets.EMNIST.classes_split_dict == upstream.EMNIST.classes_split_dict
    assert datasets.Imagenette.names == upstream.Imagenette._WNID_TO_CLASS


@pytest.mark.parametrize("size", [(3, 8, 6), (1, 8, 6)])
def test_fake_data_is_torchvisions(size):
    upstream, mine = torchvision.datasets.FakeData(3, size), datasets.FakeData(3, size)
    for index in range(3):
        image, target = upstream[index]
        assert np.array_equal(np.asarray(image), mine[index][0])
        assert target == mine[index][1]


@pytest.mark.parametrize("gamma", [0.4, 1.0, 2.2])
def test_gamma_is_torchvisions(photo, gamma):
    expected = torchvision.transforms.functional.adjust_gamma(Image.fromarray(photo), gamma, gain=1.1)
    assert np.array_equal(transforms.functional.adjust_gamma(photo, gamma, gain=1.1), np.asarray(expected))


NETWORKS = ["resnet18", "resnet34", "resnet50", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small"]


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_compute_what_torchvisions_compute_with_the_same_weights(name):
    torch.manual_seed(0)
    upstream = getattr(torchvision.models, name)(num_classes=7).eval()
    mine = getattr(models, name)(num_classes=7).eval()
    assert list(mine.state_dict()) == list(upstream.state_dict())
    mine.load_state_dict(upstream.state_dict())
    images = torch.randn(2, 3, 96, 64)
    with torch.no_grad():
        torch.testing.assert_close(mine(images), upstream(images), rtol=1e-6, atol=1e-6)
