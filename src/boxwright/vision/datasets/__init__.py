"""Data sets with torchvision's names and arguments, read from local files with OpenCV.

Change `from torchvision import datasets` to `from boxwright.vision import datasets`. What is different:

* Images are arrays (RGB, HWC, 8-bit; grey ones HW), not Pillow images.
* Images are turned as their EXIF orientation says.
* Nothing is downloaded; `download=True` says where the files belong.
* A file that can't be used is a `DataError` with the file's name, a wrong argument a `UsageError`.
"""

from boxwright.vision.datasets.cifar import CIFAR10, CIFAR100
from boxwright.vision.datasets.coco import CocoDetection
from boxwright.vision.datasets.decode import load_image, load_mask
from boxwright.vision.datasets.folder import IMG_EXTENSIONS, DatasetFolder, ImageFolder, default_loader
from boxwright.vision.datasets.mnist import MNIST, FashionMNIST
from boxwright.vision.datasets.pet import OxfordIIITPet
from boxwright.vision.datasets.segmentation import SegmentationImageFolder
from boxwright.vision.datasets.voc import VOCDetection

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
