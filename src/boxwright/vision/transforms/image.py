"""What counts as an image, and the way in and out of the array form that every transform works on."""

import sys
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from boxwright.core.errors import MissingDependencyError, UsageError

Pixels: TypeAlias = NDArray[Any]
"""Height, width and channels (HWC), or height and width alone (HW)."""

# What OpenCV's resize, warp and filter kernels take.
_OPENCV_TYPES = tuple(np.dtype(name) for name in ("uint8", "uint16", "int16", "float32", "float64"))
_MAX_OPENCV_CHANNELS = 4


class InterpolationMode(Enum):
    """How values between pixels are computed; `Resize(224, InterpolationMode.BICUBIC)`."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"

    @classmethod
    def parse(cls, value: "InterpolationMode | Enum | int | str") -> "InterpolationMode":
        """Return the mode meant by a mode, its name, or Pillow's number for it.

        Example:
            >>> InterpolationMode.parse("bicubic") is InterpolationMode.parse(3)
            True
        """
        raw = value.value if isinstance(value, Enum) else value
        pillow = {0: cls.NEAREST, 1: cls.LANCZOS, 2: cls.BILINEAR, 3: cls.BICUBIC, 4: cls.BOX, 5: cls.HAMMING}
        named = {mode.value: mode for mode in cls}
        found = pillow.get(raw) if isinstance(raw, int) else named.get(str(raw))
        if found is None:
            raise UsageError(f"Unknown interpolation {value!r}. Choose from: {', '.join(named)}.")
        return found


Mode: TypeAlias = InterpolationMode | int | str
Fill: TypeAlias = float | Sequence[float]


def is_pil(image: Any) -> bool:
    """Return whether this is a Pillow image, without importing Pillow."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(image, module.Image)


def pillow() -> Any:
    """Return the module `PIL.Image`.

    Raises:
        MissingDependencyError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError("This needs Pillow, which is not installed. Run: pip install pillow") from error
    return Image


def as_pixels(image: Any) -> Pixels:
    """Return a Pillow image or an array as an array; an array is passed through, not copied."""
    if isinstance(image, np.ndarray):
        if image.ndim not in (2, 3) or 0 in image.shape:
            raise UsageError(f"An image array is HWC or HW and not empty; this one has shape {image.shape!r}.")
        return image
    if is_pil(image):
        pixels: Pixels = np.array(image)
        # One-bit images come as booleans; elsewhere Pillow shows them as 0 and 255.
        return pixels.astype(np.uint8) * np.uint8(255) if pixels.dtype == np.bool_ else pixels
    raise UsageError(
        f"An image must be a Pillow image, an array (HWC or HW) or, for most transforms, a tensor (CHW); "
        f"got {type(image).__name__}."
    )


def apply(image: Any, change: Callable[[Pixels], Pixels]) -> Any:
    """Return what `change` makes of the image, as the kind it was: a CHW tensor, a Pillow image or an array."""
    if is_pil(image):
        pixels = as_pixels(image)
        return _as_pil(change(pixels).astype(pixels.dtype, copy=False), image)
    if not isinstance(image, torch.Tensor):
        return change(as_pixels(image))
    if image.ndim not in (2, 3) or 0 in image.shape:
        raise UsageError(
            f"An image tensor is CHW or HW and not empty; this one has shape {tuple(image.shape)!r}. "
            "Call the transform on each image of a batch."
        )
    if image.device.type != "cpu":
        raise UsageError(
            f"Image transforms run on the CPU; this tensor is on {str(image.device)!r}. Call .cpu() first."
        )
    array = image.detach().numpy()
    flat = array.ndim == 2
    changed = change(array if flat else np.ascontiguousarray(array.transpose(1, 2, 0)))
    if not flat or changed.ndim == 3:
        changed = (changed[..., None] if changed.ndim == 2 else changed).transpose(2, 0, 1)
    return torch.from_numpy(np.array(changed, order="C"))


def _as_pil(pixels: Pixels, original: Any) -> Any:
    """Return pixels as a Pillow image in the mode of the original or, with other channels, in grey or RGB."""
    flat = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    count = channels(flat)
    mode = original.mode if count == len(original.getbands()) else {1: "L", 3: "RGB"}[count]
    raw = "L" if mode == "1" else mode
    image = pillow().frombytes(raw, (flat.shape[1], flat.shape[0]), np.ascontiguousarray(flat).tobytes())
    if mode == "1":
        return image.convert("1", dither=0)
    if mode == "P":
        image.putpalette(original.getpalette())
    return image


def dimensions(image: Any) -> tuple[int, int, int]:
    """Return channels, height and width of a Pillow image, an array or a tensor."""
    if isinstance(image, torch.Tensor) and image.ndim >= 2:
        return 1 if image.ndim == 2 else int(image.shape[-3]), int(image.shape[-2]), int(image.shape[-1])
    if is_pil(image):
        return len(image.getbands()), int(image.height), int(image.width)
    pixels = as_pixels(image)
    return 1 if pixels.ndim == 2 else int(pixels.shape[2]), int(pixels.shape[0]), int(pixels.shape[1])


def size_hw(image: Any) -> tuple[int, int]:
    """Return height and width of a Pillow image, an array or a tensor."""
    return dimensions(image)[1:]


def channels(image: Any) -> int:
    """Return how many channels a Pillow image, an array or a tensor has."""
    return dimensions(image)[0]


def for_opencv(pixels: Pixels) -> Pixels:
    """Return the pixels if OpenCV can resample and filter them, else raise an error."""
    if pixels.dtype not in _OPENCV_TYPES:
        names = ", ".join(str(kind) for kind in _OPENCV_TYPES)
        raise UsageError(f"This transform works on {names}; the image is {pixels.dtype}. Convert it with astype().")
    if channels(pixels) > _MAX_OPENCV_CHANNELS:
        raise UsageError(f"This transform works on up to 4 channels; the image has {channels(pixels)}. Split it.")
    return pixels


def like(pixels: Pixels, changed: Pixels) -> Pixels:
    """Return `changed` with the channel axis of `pixels`: OpenCV drops an axis of length 1."""
    return changed[..., None] if changed.ndim < pixels.ndim else changed


def fill_values(fill: Fill, pixels: Pixels) -> tuple[float, ...]:
    """Return one fill value per channel, from one value or as many as there are channels."""
    count = channels(pixels)
    values = tuple(fill) if isinstance(fill, Iterable) else (fill,)
    if len(values) not in (1, count):
        raise UsageError(f"fill={fill!r} has {len(values)} values, but the image has {count} channels.")
    return tuple(float(value) for value in (values * count if len(values) == 1 else values))
