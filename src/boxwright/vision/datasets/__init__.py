"""Data sets with torchvision's names and arguments, read from local files with OpenCV.

Change `from torchvision import datasets` to `from boxwright.vision import datasets`. `transform` changes the image,
`target_transform` the target, `transforms` both. What is different:

* Images are arrays (RGB, HWC, 8-bit; grey ones HW), not Pillow images.
* Images are turned as their EXIF orientation says.
* Nothing is downloaded. `download=True` is accepted where the files are; elsewhere the error names what is missing.
* A file that can't be used raises a `DataError` with the file's name, a wrong argument a `UsageError`.
* Of torchvision's sets, those of video, of pairs of images and with terms to accept are not offered.
"""

from typing import Any

from boxwright.vision.datasets.annotated import (
    CocoCaptions,
    CocoDetection,
    OxfordIIITPet,
    SegmentationImageFolder,
    VOCDetection,
    VOCSegmentation,
)
from boxwright.vision.datasets.base import VisionDataset, load_image, load_mask
from boxwright.vision.datasets.folder import (
    IMG_EXTENSIONS,
    Country211,
    DatasetFolder,
    EuroSAT,
    ImageFolder,
    ImageNet,
    default_loader,
)
from boxwright.vision.datasets.listed import (
    DTD,
    GTSRB,
    SUN397,
    Caltech101,
    Caltech256,
    FGVCAircraft,
    Flowers102,
    Food101,
    Imagenette,
    Omniglot,
    RenderedSST2,
)
from boxwright.vision.datasets.published import CIFAR10, CIFAR100, MNIST, QMNIST, FashionMNIST
from boxwright.vision.datasets.small import EMNIST, KMNIST, SEMEION, STL10, SVHN, USPS, FakeData

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "DTD",
    "EMNIST",
    "GTSRB",
    "IMG_EXTENSIONS",
    "KMNIST",
    "MNIST",
    "QMNIST",
    "SEMEION",
    "STL10",
    "SUN397",
    "SVHN",
    "USPS",
    "Caltech101",
    "Caltech256",
    "CocoCaptions",
    "CocoDetection",
    "Country211",
    "DatasetFolder",
    "EuroSAT",
    "FGVCAircraft",
    "FakeData",
    "FashionMNIST",
    "Flowers102",
    "Food101",
    "ImageFolder",
    "ImageNet",
    "Imagenette",
    "Omniglot",
    "OxfordIIITPet",
    "RenderedSST2",
    "SegmentationImageFolder",
    "VOCDetection",
    "VOCSegmentation",
    "VisionDataset",
    "default_loader",
    "load_image",
    "load_mask",
]

# Names of torchvision that are not here; `docs/explanation/left-out.md` says what to use instead.
_LEFT_OUT = {
    "CLEVRClassification", "CREStereo", "CarlaStereo", "CelebA", "Cityscapes", "ETH3DStereo", "FER2013",
    "FallingThingsStereo", "Flickr30k", "Flickr8k", "FlyingChairs", "FlyingThings3D", "HD1K", "HMDB51", "INaturalist",
    "InStereo2k", "Kinetics", "Kitti", "Kitti2012Stereo", "Kitti2015Stereo", "KittiFlow", "LFWPairs", "LFWPeople",
    "LSUN", "LSUNClass", "Middlebury2014Stereo", "MovingMNIST", "PCAM", "PhotoTour", "Places365", "SBDataset", "SBU",
    "SceneFlowStereo", "Sintel", "SintelStereo", "StanfordCars", "UCF101", "WIDERFace",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    hint = (
        ": this set of torchvision is not offered. Use ImageFolder for one folder per class, CocoDetection or "
        "VOCDetection for boxes, or derive from VisionDataset (docs/explanation/left-out.md)."
        if name in _LEFT_OUT
        else ""
    )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
