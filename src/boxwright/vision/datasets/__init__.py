"""Data sets with torchvision's names and arguments, read from local files with OpenCV.

Change `from torchvision import datasets` to `from boxwright.vision import datasets`. `transform` changes the image,
`target_transform` the target, `transforms` both. What is different:

* Images are arrays (RGB, HWC, 8-bit; grey ones HW), not Pillow images.
* Images are turned as their EXIF orientation says.
* Nothing is downloaded. `download=True` is accepted where the files are; elsewhere the error names what is missing.
* A file that can't be used raises a `DataError` with the file's name, a wrong argument a `UsageError`.
"""

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
    RenderedSST2,
)
from boxwright.vision.datasets.published import CIFAR10, CIFAR100, MNIST, FashionMNIST
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
