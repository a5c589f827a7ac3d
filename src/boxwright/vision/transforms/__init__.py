"""Image transforms with torchvision's names, arguments and random ranges, on OpenCV, numpy and torch's CPU kernels.

Change `from torchvision import transforms` to `from boxwright.vision import transforms`. What is different:

* Images are Pillow images, arrays (HWC or HW; RGB, 8-bit) or tensors (CHW), and come out as the kind that went in.
  Arrays are the fastest; the data sets of `boxwright.vision` give them.
* Image tensors are single images; call a transform on each image of a batch. `Normalize` and `RandomErasing` take
  batches too.
* `antialias=False` applies to every image; torchvision can't switch antialiasing off for Pillow images.
* `RandomChoice` and `RandomOrder` draw from torch's generator like all the others.
* A wrong argument or image raises a `UsageError`, which is a `ValueError`.

The top of each file says how near the pixels come to Pillow's.

Example:
    >>> import numpy as np
    >>> steps = Compose([Resize(32), CenterCrop(28), ToTensor(), Normalize([0.5], [0.5])])
    >>> steps(np.zeros((48, 64, 3), np.uint8)).shape
    torch.Size([3, 28, 28])
"""

from boxwright.vision.transforms import functional
from boxwright.vision.transforms.auto import AugMix, AutoAugment, AutoAugmentPolicy, RandAugment, TrivialAugmentWide
from boxwright.vision.transforms.colour import ColorJitter, Grayscale, RandomGrayscale
from boxwright.vision.transforms.compose import Compose, Lambda, RandomApply, RandomChoice, RandomOrder
from boxwright.vision.transforms.convert import (
    ConvertImageDtype,
    LinearTransformation,
    Normalize,
    PILToTensor,
    ToPILImage,
    ToTensor,
)
from boxwright.vision.transforms.crop import (
    CenterCrop,
    FiveCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
    TenCrop,
)
from boxwright.vision.transforms.elastic import ElasticTransform
from boxwright.vision.transforms.erase import RandomErasing
from boxwright.vision.transforms.filter import GaussianBlur, RandomAdjustSharpness
from boxwright.vision.transforms.image import InterpolationMode
from boxwright.vision.transforms.resize import RandomResizedCrop, Resize
from boxwright.vision.transforms.tone import (
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from boxwright.vision.transforms.warp import RandomAffine, RandomPerspective, RandomRotation

__all__ = [
    "AugMix",
    "AutoAugment",
    "AutoAugmentPolicy",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "ConvertImageDtype",
    "ElasticTransform",
    "FiveCrop",
    "GaussianBlur",
    "Grayscale",
    "InterpolationMode",
    "Lambda",
    "LinearTransformation",
    "Normalize",
    "PILToTensor",
    "Pad",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomOrder",
    "RandomPerspective",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "TenCrop",
    "ToPILImage",
    "ToTensor",
    "TrivialAugmentWide",
    "functional",
]
