"""Between images and tensors: ToTensor, Normalize and related transforms."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np
import torch

from boxwright.core.errors import UsageError
from boxwright.vision.transforms.base import Transform
from boxwright.vision.transforms.image import Pixels, as_pixels, pillow

_MODES = {1: ("L",), 2: ("LA",), 3: ("RGB", "YCbCr", "HSV"), 4: ("RGBA", "CMYK", "RGBX")}
_GREY_MODES = {"uint8": "L", "int16": "I;16", "uint16": "I;16", "int32": "I", "float32": "F"}


def to_tensor(pic: Any) -> torch.Tensor:
    """Return a Pillow image or an array as a CHW tensor: 8-bit values become floats from 0 to 1, others stay.

    Example:
        >>> to_tensor(np.full((1, 1, 3), 255, np.uint8)).tolist()
        [[[1.0]], [[1.0]], [[1.0]]]
    """
    tensor = _planes("ToTensor", pic)
    if tensor.dtype == torch.uint8:
        return tensor.to(torch.get_default_dtype()).div_(255)
    return tensor


def pil_to_tensor(pic: Any) -> torch.Tensor:
    """Return a Pillow image or an array as a CHW tensor with the values it has.

    Example:
        >>> pil_to_tensor(np.full((1, 1, 3), 255, np.uint8)).tolist()
        [[[255]], [[255]], [[255]]]
    """
    return _planes("PILToTensor", pic)


def _planes(name: str, pic: Any) -> torch.Tensor:
    if isinstance(pic, torch.Tensor):
        raise UsageError(f"{name} takes a Pillow image or an array; this is a tensor already.")
    pixels = as_pixels(pic)
    if pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3:
        # Three times as fast as a transposed copy in torch or numpy.
        planes = np.empty((3, *pixels.shape[:2]), np.uint8)
        cv2.split(pixels, [planes[0], planes[1], planes[2]])
        return torch.from_numpy(planes)
    array = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return torch.from_numpy(np.array(array, order="C"))


def to_pil_image(pic: Any, mode: str | None = None) -> Any:
    """Return a CHW tensor or an HWC array as a Pillow image; float tensors are taken to run from 0 to 1.

    Args:
        pic: the tensor or array.
        mode: Pillow's name for the colours, when the number of channels allows several.

    Raises:
        UsageError: no Pillow mode fits.
        MissingDependencyError: Pillow is not installed.

    Example:
        >>> to_pil_image(np.zeros((2, 3, 3), np.uint8)).size
        (3, 2)
    """
    if isinstance(pic, torch.Tensor):
        if pic.ndim not in (2, 3):
            raise UsageError(f"An image tensor is CHW or HW; this one has shape {tuple(pic.shape)!r}.")
        if pic.is_floating_point() and mode != "F":
            pic = pic.mul(255).byte()
        array = pic.detach().cpu().numpy()
        pixels: Pixels = array if array.ndim == 2 else array.transpose(1, 2, 0)
    else:
        pixels = as_pixels(pic)
    flat = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    fitting: tuple[str, ...] = ()
    if flat.ndim == 2 and str(flat.dtype) in _GREY_MODES:
        fitting = (_GREY_MODES[str(flat.dtype)],)
    elif flat.ndim == 3 and flat.dtype == np.uint8:
        fitting = _MODES.get(flat.shape[2], ())
    if not fitting or (mode is not None and mode not in fitting):
        raise UsageError(
            f"No Pillow image of mode {mode!r} can hold shape {pixels.shape!r} of {pixels.dtype}; "
            f"fitting modes: {', '.join(fitting) or 'none'}."
        )
    return pillow().frombytes(mode or fitting[0], (flat.shape[1], flat.shape[0]), np.ascontiguousarray(flat).tobytes())


def convert_image_dtype(image: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the tensor in another type with its values scaled to that type's range: 0 to 1 for floats.

    Raises:
        UsageError: it is not a tensor, or the range of a float image does not fit the whole numbers asked for.

    Example:
        >>> convert_image_dtype(torch.tensor([0, 255], dtype=torch.uint8)).tolist()
        [0.0, 1.0]
    """
    if not isinstance(image, torch.Tensor):
        raise UsageError(f"ConvertImageDtype takes a tensor, got {type(image).__name__}. Use ToTensor first.")
    if image.dtype == dtype:
        return image
    if image.dtype.is_floating_point:
        if dtype.is_floating_point:
            return image.to(dtype)
        too_wide = {torch.float32: (torch.int32, torch.int64), torch.float64: (torch.int64,)}
        if dtype in too_wide.get(image.dtype, ()):
            raise UsageError(f"{image.dtype} can't hold all values of {dtype}. Choose a narrower type.")
        # Just under one more than the top value, so that 1.0 still becomes the top value and the steps are even.
        return image.mul(_top(dtype) + 1 - 1e-3).to(dtype)
    if dtype.is_floating_point:
        return image.to(dtype) / _top(image.dtype)
    before, after = _top(image.dtype), _top(dtype)
    if before > after:
        return torch.div(image, (before + 1) // (after + 1), rounding_mode="floor").to(dtype)
    return image.to(dtype) * ((after + 1) // (before + 1))


def _top(dtype: torch.dtype) -> int:
    return 1 if dtype == torch.bool else int(torch.iinfo(dtype).max)


def normalize(tensor: torch.Tensor, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> torch.Tensor:
    """Return (tensor - mean) / std, channel by channel; `inplace` saves the copy.

    Args:
        tensor: floats, CHW or with leading batch axes.
        mean: one value, or one per channel.
        std: the same; none may be 0.
        inplace: change the tensor itself.

    Example:
        >>> normalize(torch.ones(1, 1, 1), [0.5], [0.25]).item()
        2.0
    """
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or tensor.ndim < 3:
        kind = f"{tensor.dtype} {tuple(tensor.shape)!r}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise UsageError(f"Normalize takes a float tensor (..., C, H, W), got {kind}. Use ToTensor first.")
    centre, spread = (torch.as_tensor(value, dtype=tensor.dtype, device=tensor.device) for value in (mean, std))
    if (spread == 0).any():
        raise UsageError(f"std={std!r} holds a 0 (in {tensor.dtype}), which can't divide.")
    for name, value in (("mean", centre), ("std", spread)):
        if value.ndim > 1 or value.numel() not in (1, tensor.shape[-3]):
            raise UsageError(f"{name} has {value.numel()} values, but the tensor has {tensor.shape[-3]} channels.")
    centre, spread = centre.reshape(-1, 1, 1), spread.reshape(-1, 1, 1)
    return (tensor.sub_(centre) if inplace else tensor.sub(centre)).div_(spread)


@dataclass(eq=False, repr=False)
class ToTensor(Transform):
    """Converts an image to a contiguous float CHW tensor from 0 to 1; see `to_tensor`.

    Example:
        >>> ToTensor()(np.zeros((6, 8, 3), np.uint8)).shape
        torch.Size([3, 6, 8])
    """

    def forward(self, pic: Any) -> torch.Tensor:
        """Return the tensor."""
        return to_tensor(pic)


@dataclass(eq=False, repr=False)
class PILToTensor(Transform):
    """Converts an image to a CHW tensor with the values it has; see `pil_to_tensor`.

    Example:
        >>> PILToTensor()(np.zeros((6, 8, 3), np.uint8)).dtype
        torch.uint8
    """

    def forward(self, pic: Any) -> torch.Tensor:
        """Return the tensor."""
        return pil_to_tensor(pic)


@dataclass(eq=False, repr=False)
class ToPILImage(Transform):
    """Converts a tensor or array to a Pillow image; see `to_pil_image`.

    Example:
        >>> ToPILImage()(np.zeros((6, 8, 3), np.uint8)).mode
        'RGB'
    """

    mode: str | None = None

    def forward(self, pic: Any) -> Any:
        """Return the Pillow image."""
        return to_pil_image(pic, self.mode)


@dataclass(eq=False, repr=False)
class ConvertImageDtype(Transform):
    """Converts a tensor to another type and scales its values; see `convert_image_dtype`.

    Example:
        >>> ConvertImageDtype(torch.float32)(torch.tensor([255], dtype=torch.uint8)).item()
        1.0
    """

    dtype: torch.dtype

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the converted tensor."""
        return convert_image_dtype(image, self.dtype)


@dataclass(eq=False, repr=False)
class Normalize(Transform):
    """Returns (tensor - mean) / std; see `normalize`.

    Example:
        >>> Normalize([0.5], [0.25])(torch.ones(1, 1, 1)).item()
        2.0
    """

    mean: Sequence[float]
    std: Sequence[float]
    inplace: bool = field(default=False, repr=False)

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the normalized tensor."""
        return normalize(tensor, self.mean, self.std, self.inplace)


@dataclass(eq=False, repr=False)
class LinearTransformation(Transform):
    """Subtracts a mean vector from the flattened tensor and multiplies it by a matrix; this whitens images.

    Args:
        transformation_matrix: (D, D), for D = C x H x W.
        mean_vector: (D,).

    Example:
        >>> LinearTransformation(2 * torch.eye(4), torch.ones(4))(torch.ones(1, 2, 2)).sum().item()
        0.0
    """

    transformation_matrix: torch.Tensor
    mean_vector: torch.Tensor

    def __post_init__(self) -> None:
        matrix, mean = self.transformation_matrix, self.mean_vector
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or tuple(mean.shape) != tuple(matrix.shape[:1]):
            raise UsageError(
                f"LinearTransformation needs a square matrix and a mean of the same length, got "
                f"{tuple(matrix.shape)!r} and {tuple(mean.shape)!r}."
            )

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor (..., C, H, W) after the multiplication."""
        if not isinstance(tensor, torch.Tensor) or tensor.ndim < 3:
            raise UsageError(f"LinearTransformation takes a tensor (..., C, H, W), got {type(tensor).__name__}.")
        if tensor.shape[-3:].numel() != len(self.mean_vector):
            raise UsageError(
                f"The tensor holds {tensor.shape[-3:].numel()} values per image, but the matrix is for "
                f"{len(self.mean_vector)}."
            )
        matrix = self.transformation_matrix.to(tensor.dtype)
        flat = tensor.reshape(-1, len(self.mean_vector)) - self.mean_vector.to(tensor.dtype)
        return (flat @ matrix).reshape(tensor.shape)
