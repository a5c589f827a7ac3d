"""The transforms as functions, under torchvision's names: `functional.resize(image, 224)`."""

from typing import Any

from boxwright.vision.transforms.colour import adjust_brightness as adjust_brightness
from boxwright.vision.transforms.colour import adjust_contrast as adjust_contrast
from boxwright.vision.transforms.colour import adjust_gamma as adjust_gamma
from boxwright.vision.transforms.colour import adjust_hue as adjust_hue
from boxwright.vision.transforms.colour import adjust_saturation as adjust_saturation
from boxwright.vision.transforms.colour import rgb_to_grayscale as rgb_to_grayscale
from boxwright.vision.transforms.convert import convert_image_dtype as convert_image_dtype
from boxwright.vision.transforms.convert import normalize as normalize
from boxwright.vision.transforms.convert import pil_to_tensor as pil_to_tensor
from boxwright.vision.transforms.convert import to_pil_image as to_pil_image
from boxwright.vision.transforms.convert import to_tensor as to_tensor
from boxwright.vision.transforms.crop import center_crop as center_crop
from boxwright.vision.transforms.crop import crop as crop
from boxwright.vision.transforms.crop import five_crop as five_crop
from boxwright.vision.transforms.crop import hflip as hflip
from boxwright.vision.transforms.crop import pad as pad
from boxwright.vision.transforms.crop import ten_crop as ten_crop
from boxwright.vision.transforms.crop import vflip as vflip
from boxwright.vision.transforms.elastic import elastic_transform as elastic_transform
from boxwright.vision.transforms.erase import erase as erase
from boxwright.vision.transforms.filter import adjust_sharpness as adjust_sharpness
from boxwright.vision.transforms.filter import gaussian_blur as gaussian_blur
from boxwright.vision.transforms.image import InterpolationMode as InterpolationMode
from boxwright.vision.transforms.image import dimensions
from boxwright.vision.transforms.resize import resize as resize
from boxwright.vision.transforms.resize import resized_crop as resized_crop
from boxwright.vision.transforms.tone import autocontrast as autocontrast
from boxwright.vision.transforms.tone import equalize as equalize
from boxwright.vision.transforms.tone import invert as invert
from boxwright.vision.transforms.tone import posterize as posterize
from boxwright.vision.transforms.tone import solarize as solarize
from boxwright.vision.transforms.warp import affine as affine
from boxwright.vision.transforms.warp import perspective as perspective
from boxwright.vision.transforms.warp import rotate as rotate

to_grayscale = rgb_to_grayscale


def get_image_size(img: Any) -> list[int]:
    """Return [width, height] of a Pillow image, an array or a tensor."""
    _, height, width = dimensions(img)
    return [width, height]


def get_dimensions(img: Any) -> list[int]:
    """Return [channels, height, width] of a Pillow image, an array or a tensor."""
    return list(dimensions(img))


def get_image_num_channels(img: Any) -> int:
    """Return how many channels a Pillow image, an array or a tensor has."""
    return dimensions(img)[0]
