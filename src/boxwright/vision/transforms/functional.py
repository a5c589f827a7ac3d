"""The transforms as functions, under torchvision's names: `functional.resize(image, 224)`."""

from typing import Any

from boxwright.vision.transforms.colour import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    rgb_to_grayscale,
)
from boxwright.vision.transforms.convert import (
    convert_image_dtype,
    normalize,
    pil_to_tensor,
    to_pil_image,
    to_tensor,
)
from boxwright.vision.transforms.crop import center_crop, crop, five_crop, ten_crop
from boxwright.vision.transforms.erase import erase
from boxwright.vision.transforms.filter import adjust_sharpness, gaussian_blur
from boxwright.vision.transforms.flip import hflip, vflip
from boxwright.vision.transforms.image import InterpolationMode, channels, size_hw
from boxwright.vision.transforms.pad import pad
from boxwright.vision.transforms.resize import resize, resized_crop
from boxwright.vision.transforms.tone import autocontrast, equalize, invert, posterize, solarize
from boxwright.vision.transforms.warp import affine, perspective, rotate

__all__ = [
    "InterpolationMode",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "adjust_sharpness",
    "affine",
    "autocontrast",
    "center_crop",
    "convert_image_dtype",
    "crop",
    "equalize",
    "erase",
    "five_crop",
    "gaussian_blur",
    "get_dimensions",
    "get_image_size",
    "hflip",
    "invert",
    "normalize",
    "pad",
    "perspective",
    "pil_to_tensor",
    "posterize",
    "resize",
    "resized_crop",
    "rgb_to_grayscale",
    "rotate",
    "solarize",
    "ten_crop",
    "to_grayscale",
    "to_pil_image",
    "to_tensor",
    "vflip",
]

to_grayscale = rgb_to_grayscale


def get_image_size(img: Any) -> list[int]:
    """Return [width, height] of a Pillow image, an array or a tensor."""
    height, width = size_hw(img)
    return [width, height]


def get_dimensions(img: Any) -> list[int]:
    """Return [channels, height, width] of a Pillow image, an array or a tensor."""
    return [channels(img), *size_hw(img)]
