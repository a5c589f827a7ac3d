"""Augmentation by published policies: AutoAugment, RandAugment, TrivialAugment and AugMix; for 8-bit images.

The draws are torchvision's, so a seed gives the operations and strengths that torchvision chooses.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import torch

from boxwright.core.errors import UsageError
from boxwright.vision.transforms.base import Transform, check_range, integer
from boxwright.vision.transforms.colour import adjust_brightness, adjust_contrast, adjust_saturation
from boxwright.vision.transforms.filter import adjust_sharpness
from boxwright.vision.transforms.image import Fill, InterpolationMode, Mode, Pixels, apply
from boxwright.vision.transforms.tone import autocontrast, eight_bit, equalize, invert, posterize, solarize
from boxwright.vision.transforms.warp import affine, rotate, warp_mode

_AUGMIX_LEVELS = 10

Strengths: TypeAlias = Mapping[str, torch.Tensor]
"""Of each operation the strengths to choose from; empty for one that has none."""


class AutoAugmentPolicy(Enum):
    """The data sets that the policies of AutoAugment were found on."""

    IMAGENET = "imagenet"
    CIFAR10 = "cifar10"
    SVHN = "svhn"


# Cubuk and others, "AutoAugment: Learning Augmentation Policies from Data" (2018), tables 7 to 9: pairs of operations,
# each with its probability and its strength from 0 to 9.
_POLICIES = {
    AutoAugmentPolicy.IMAGENET: """
    Posterize 0.4 8 + Rotate 0.6 9, Solarize 0.6 5 + AutoContrast 0.6, Equalize 0.8 + Equalize 0.6,
    Posterize 0.6 7 + Posterize 0.6 6, Equalize 0.4 + Solarize 0.2 4, Equalize 0.4 + Rotate 0.8 8,
    Solarize 0.6 3 + Equalize 0.6, Posterize 0.8 5 + Equalize 1.0, Rotate 0.2 3 + Solarize 0.6 8,
    Equalize 0.6 + Posterize 0.4 6, Rotate 0.8 8 + Color 0.4 0, Rotate 0.4 9 + Equalize 0.6,
    Equalize 0.0 + Equalize 0.8, Invert 0.6 + Equalize 1.0, Color 0.6 4 + Contrast 1.0 8,
    Rotate 0.8 8 + Color 1.0 2, Color 0.8 8 + Solarize 0.8 7, Sharpness 0.4 7 + Invert 0.6,
    ShearX 0.6 5 + Equalize 1.0, Color 0.4 0 + Equalize 0.6, Equalize 0.4 + Solarize 0.2 4,
    Solarize 0.6 5 + AutoContrast 0.6, Invert 0.6 + Equalize 1.0, Color 0.6 4 + Contrast 1.0 8,
    Equalize 0.8 + Equalize 0.6""",
    AutoAugmentPolicy.CIFAR10: """
    Invert 0.1 + Contrast 0.2 6, Rotate 0.7 2 + TranslateX 0.3 9, Sharpness 0.8 1 + Sharpness 0.9 3,
    ShearY 0.5 8 + TranslateY 0.7 9, AutoContrast 0.5 + Equalize 0.9, ShearY 0.2 7 + Posterize 0.3 7,
    Color 0.4 3 + Brightness 0.6 7, Sharpness 0.3 9 + Brightness 0.7 9, Equalize 0.6 + Equalize 0.5,
    Contrast 0.6 7 + Sharpness 0.6 5, Color 0.7 7 + TranslateX 0.5 8, Equalize 0.3 + AutoContrast 0.4,
    TranslateY 0.4 3 + Sharpness 0.2 6, Brightness 0.9 6 + Color 0.2 8, Solarize 0.5 2 + Invert 0.0,
    Equalize 0.2 + AutoContrast 0.6, Equalize 0.2 + Equalize 0.6, Color 0.9 9 + Equalize 0.6,
    AutoContrast 0.8 + Solarize 0.2 8, Brightness 0.1 3 + Color 0.7 0, Solarize 0.4 5 + AutoContrast 0.9,
    TranslateY 0.9 9 + TranslateY 0.7 9, AutoContrast 0.9 + Solarize 0.8 3, Equalize 0.8 + Invert 0.1,
    TranslateY 0.7 9 + AutoContrast 0.9""",
    AutoAugmentPolicy.SVHN: """
    ShearX 0.9 4 + Invert 0.2, ShearY 0.9 8 + Invert 0.7, Equalize 0.6 + Solarize 0.6 6,
    Invert 0.9 + Equalize 0.6, Equalize 0.6 + Rotate 0.9 3, ShearX 0.9 4 + AutoContrast 0.8,
    ShearY 0.9 8 + Invert 0.4, ShearY 0.9 5 + Solarize 0.2 6, Invert 0.9 + AutoContrast 0.8,
    Equalize 0.6 + Rotate 0.9 3, ShearX 0.9 4 + Solarize 0.3 3, ShearY 0.8 8 + Invert 0.7,
    Equalize 0.9 + TranslateY 0.6 6, Invert 0.9 + Equalize 0.6, Contrast 0.3 3 + Rotate 0.8 4,
    Invert 0.8 + TranslateY 0.0 2, ShearY 0.7 6 + Solarize 0.4 8, Invert 0.6 + Rotate 0.8 4,
    ShearY 0.3 7 + TranslateX 0.9 3, ShearX 0.1 6 + Invert 0.6, Solarize 0.7 2 + TranslateY 0.6 7,
    ShearY 0.8 4 + Invert 0.8, ShearX 0.7 9 + TranslateY 0.8 3, ShearY 0.8 5 + AutoContrast 0.7,
    ShearX 0.7 2 + Invert 0.1""",
}
_TONES = ("Brightness", "Color", "Contrast", "Sharpness")
_MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
_ORDER = (*_MOVES, *_TONES, "Posterize", "Solarize", "AutoContrast", "Equalize")
_AUGMIX_ORDER = (*_MOVES, "Posterize", "Solarize", "AutoContrast", "Equalize")
_SIGNED = {*_MOVES, *_TONES}


def _strengths(
    levels: int, *, shear: float, shift_xy: tuple[float, float], angle: float, tone: float, bits: tuple[int, int]
) -> Strengths:
    """Return the strengths of all operations, from the weakest to the strongest."""
    tops = dict(zip(_MOVES, (shear, shear, *shift_xy, angle), strict=True)) | dict.fromkeys(_TONES, tone)
    lost = (torch.arange(levels) / ((levels - 1) / bits[1])).round().int()
    return {name: torch.linspace(0.0, top, levels) for name, top in tops.items()} | {
        "Posterize": bits[0] - lost,
        "Solarize": torch.linspace(255.0, 0.0, levels),
        **dict.fromkeys(("Identity", "AutoContrast", "Equalize", "Invert"), torch.zeros(0)),
    }


def _operate(pixels: Pixels, name: str, strength: float, mode: Mode, fill: Fill | None) -> Pixels:
    """Return the pixels after one operation."""
    values: Fill = 0 if fill is None else fill
    result: Pixels
    if name in ("ShearX", "ShearY"):
        degrees = math.degrees(math.atan(strength))
        shear = (degrees, 0.0) if name == "ShearX" else (0.0, degrees)
        result = affine(pixels, 0.0, (0, 0), 1.0, shear, mode, values, center=(0, 0))
    elif name in ("TranslateX", "TranslateY"):
        shift = (int(strength), 0) if name == "TranslateX" else (0, int(strength))
        result = affine(pixels, 0.0, shift, 1.0, 0.0, mode, values)
    elif name == "Rotate":
        result = rotate(pixels, strength, mode, fill=values)
    elif name in _TONES:
        changes = (adjust_brightness, adjust_saturation, adjust_contrast, adjust_sharpness)
        result = changes[_TONES.index(name)](pixels, 1.0 + strength)
    elif name == "Posterize":
        result = posterize(pixels, int(strength))
    elif name == "Solarize":
        result = solarize(pixels, strength)
    elif name == "Identity":
        result = pixels
    else:
        result = {"AutoContrast": autocontrast, "Equalize": equalize, "Invert": invert}[name](pixels)
    return result


def _draw(names: Sequence[str], strengths: Strengths, level: int | None, below: int = 0) -> tuple[str, float]:
    """Return a random operation with the strength of a level, or with one of a random level below a number."""
    name = names[integer(0, len(names))]
    choices = strengths[name]
    strength = 0.0
    if len(choices):
        strength = float(choices[integer(0, below or len(choices)) if level is None else level].item())
    if name in _SIGNED and integer(0, 2):
        strength = -strength
    return name, strength


@dataclass(eq=False, repr=False)
class AutoAugment(Transform):
    """Applies one of 25 pairs of operations, each with its own probability.

    Args:
        policy: the data set that the pairs were found on, or its name.
        interpolation: `nearest`, `bilinear` or `bicubic`.
        fill: value of the parts that come into view, or one per channel; None is 0.

    Example:
        >>> AutoAugment()(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    policy: AutoAugmentPolicy = AutoAugmentPolicy.IMAGENET
    interpolation: Mode = InterpolationMode.NEAREST
    fill: Fill | None = None

    def __post_init__(self) -> None:
        value = self.policy.value if isinstance(self.policy, Enum) else self.policy
        named = {policy.value: policy for policy in AutoAugmentPolicy}
        if value not in named:
            raise UsageError(f"Unknown policy {self.policy!r}. Choose from: {', '.join(named)}.")
        self.policy = named[value]
        self.interpolation = warp_mode(self.interpolation)
        pairs = _POLICIES[self.policy].split(",")
        self.policies = [[step.split() for step in pair.split("+")] for pair in pairs]

    @staticmethod
    def get_params(transform_num: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        """Return the number of a pair, two numbers to compare with the probabilities, and two signs."""
        return integer(0, transform_num), torch.rand((2,)), torch.randint(2, (2,))

    def change(self, img: Any) -> Any:
        """Return the image after one pair of operations."""
        return apply(img, self._change_pixels)

    def _change_pixels(self, pixels: Pixels) -> Pixels:
        height, width = eight_bit("AutoAugment", pixels).shape[:2]
        strengths = _published(10, height, width)
        pair, chances, signs = self.get_params(len(self.policies))
        for (name, probability, *level), chance, sign in zip(self.policies[pair], chances, signs, strict=True):
            if chance <= float(probability):
                strength = float(strengths[name][int(level[0])].item()) if level else 0.0
                if name in _SIGNED and sign == 0:
                    strength = -strength
                pixels = _operate(pixels, name, strength, self.interpolation, self.fill)
        return pixels


def _published(levels: int, height: int, width: int) -> Strengths:
    reach = 150.0 / 331.0
    return _strengths(levels, shear=0.3, shift_xy=(reach * width, reach * height), angle=30.0, tone=0.9, bits=(8, 4))


@dataclass(eq=False, repr=False)
class RandAugment(Transform):
    """Applies `num_ops` random operations of one strength (Cubuk and others, 2019).

    Args:
        num_ops: how many operations.
        magnitude: their strength, from 0 up to, not including, `num_magnitude_bins`.
        num_magnitude_bins: how many strengths there are.
        interpolation: as in `AutoAugment`, like `fill`.

    Example:
        >>> RandAugment(magnitude=5)(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Mode = InterpolationMode.NEAREST
    fill: Fill | None = None

    def __post_init__(self) -> None:
        check_range("num_ops", 0, self.num_ops)
        check_range("num_magnitude_bins", 2, self.num_magnitude_bins, 1 << 20)
        check_range("magnitude", 0, self.magnitude, self.num_magnitude_bins - 1)
        self.interpolation = warp_mode(self.interpolation)

    def change(self, img: Any) -> Any:
        """Return the image after the operations."""
        return apply(img, self._change_pixels)

    def _change_pixels(self, pixels: Pixels) -> Pixels:
        strengths = _published(self.num_magnitude_bins, *eight_bit("RandAugment", pixels).shape[:2])
        for _ in range(self.num_ops):
            name, strength = _draw(("Identity", *_ORDER), strengths, self.magnitude)
            pixels = _operate(pixels, name, strength, self.interpolation, self.fill)
        return pixels


@dataclass(eq=False, repr=False)
class TrivialAugmentWide(Transform):
    """Applies one random operation of random strength (Müller and Hutter, 2021).

    Args:
        num_magnitude_bins: how many strengths there are.
        interpolation: as in `AutoAugment`, like `fill`.

    Example:
        >>> TrivialAugmentWide()(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    num_magnitude_bins: int = 31
    interpolation: Mode = InterpolationMode.NEAREST
    fill: Fill | None = None

    def __post_init__(self) -> None:
        check_range("num_magnitude_bins", 2, self.num_magnitude_bins, 1 << 20)
        self.interpolation = warp_mode(self.interpolation)

    def change(self, img: Any) -> Any:
        """Return the image after the operation."""
        return apply(img, self._change_pixels)

    def _change_pixels(self, pixels: Pixels) -> Pixels:
        eight_bit("TrivialAugmentWide", pixels)
        strengths = _strengths(
            self.num_magnitude_bins, shear=0.99, shift_xy=(32.0, 32.0), angle=135.0, tone=0.99, bits=(8, 6)
        )
        return _operate(pixels, *_draw(("Identity", *_ORDER), strengths, None), self.interpolation, self.fill)


@dataclass(eq=False, repr=False)
class AugMix(Transform):
    """Blends the image with chains of random operations on it (Hendrycks and others, 2019).

    Args:
        severity: the largest strength, from 1 to 10.
        mixture_width: how many chains.
        chain_depth: operations of a chain; -1 for a random number from 1 to 3.
        alpha: how evenly the image and the chains are blended.
        all_ops: whether brightness, colour, contrast and sharpness belong to the operations.
        interpolation: as in `AutoAugment`, like `fill`.

    Example:
        >>> AugMix()(np.zeros((6, 8, 3), np.uint8)).shape
        (6, 8, 3)
    """

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: Mode = InterpolationMode.BILINEAR
    fill: Fill | None = None

    def __post_init__(self) -> None:
        check_range("severity", 1, self.severity, _AUGMIX_LEVELS)
        check_range("mixture_width", 1, self.mixture_width)
        if not self.alpha > 0:
            raise UsageError(f"alpha={self.alpha!r} must be above 0.")
        self.interpolation = warp_mode(self.interpolation)

    def change(self, img: Any) -> Any:
        """Return the blended image."""
        return apply(img, self._change_pixels)

    def _change_pixels(self, pixels: Pixels) -> Pixels:
        height, width = eight_bit("AugMix", pixels).shape[:2]
        names = (*_AUGMIX_ORDER, *_TONES) if self.all_ops else _AUGMIX_ORDER
        strengths = _strengths(
            _AUGMIX_LEVELS, shear=0.3, shift_xy=(width / 3.0, height / 3.0), angle=30.0, tone=0.9, bits=(4, 4)
        )
        kept, mixed = (float(share) for share in self._shares(2))
        shares = [float(share) * mixed for share in self._shares(self.mixture_width)]
        blend = pixels.astype(np.float32) * np.float32(kept)
        for share in shares:
            made = pixels
            for _ in range(self.chain_depth if self.chain_depth > 0 else integer(1, 4)):
                drawn = _draw(names, strengths, None, below=self.severity)
                made = _operate(made, *drawn, self.interpolation, self.fill)
            blend += made.astype(np.float32) * np.float32(share)
        return blend.clip(0, 255).astype(np.uint8)

    def _shares(self, count: int) -> torch.Tensor:
        return torch._sample_dirichlet(torch.full((1, count), float(self.alpha)))[0]
