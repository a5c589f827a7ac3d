"""Data sets with torchvision's names and arguments, read from local files with OpenCV.

Change `from torchvision import datasets` to `from boxwright.vision import datasets`. `transform` changes the image,
`target_transform` the target, `transforms` both. What is different:

* Images are arrays (RGB, HWC, 8-bit; grey ones HW), not Pillow images.
* Images are turned as their EXIF orientation says.
* Nothing is downloaded; `download=True` raises an error that says where the files belong.
* A file that can't be used raises a `DataError` with the file's name, a wrong argument a `UsageError`.
"""

from boxwright.vision.datasets.annotated import CocoDetection, OxfordIIITPet, SegmentationImageFolder, VOCDetection
from boxwright.vision.datasets.base import load_image, load_mask
from boxwright.vision.datasets.folder import IMG_EXTENSIONS, DatasetFolder, ImageFolder, default_loader
from boxwright.vision.datasets.published import CIFAR10, CIFAR100, MNIST, FashionMNIST

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "IMG_EXTENSIONS",
    "MNIST",
    "CocoDetection",
    "DatasetFolder",
    "FashionMNIST",
    "ImageFolder",
    "OxfordIIITPet",
    "SegmentationImageFolder",
    "VOCDetection",
    "default_loader",
    "load_image",
    "load_mask",
]
