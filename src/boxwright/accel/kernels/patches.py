"""The pixels of each 2×2 patch as channels: what a network's first layer reads, from bytes in one pass."""

import ctypes

import torch
from torch import Tensor

from boxwright.accel.kernels.native import TYPES, at, load_kernels


def pack_patches(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Return images (B, 3, H, W) as (B, 12, H/2, W/2): left above, left below, right above, right below.

    PyTorch's operators convert byte by byte, and copy three values at a time.

    Args:
        images: H and W are even; bytes that lie channels last take the fast way.
        dtype: of the result.
    """
    if _fits(images, dtype) and (kernels := load_kernels()) is not None:
        count, _, height, width = images.shape
        out = torch.empty(
            (count, 12, height // 2, width // 2), dtype=dtype, memory_format=torch.channels_last, device=images.device
        )
        pack = getattr(kernels, f"pack_patches_{TYPES[dtype]}")
        if pack(at(images), at(out), ctypes.c_int64(count * height), ctypes.c_int64(width)):
            raise MemoryError("Out of memory for a row of pixels.")
        return out
    images = images.to(dtype)
    corners = [images[..., row::2, column::2] for column in (0, 1) for row in (0, 1)]
    return torch.cat(corners, dim=1)


def _fits(images: Tensor, dtype: torch.dtype) -> bool:
    return (
        images.is_cpu
        and type(images) is Tensor  # tracing tensors have no storage
        and images.dtype == torch.uint8
        and dtype in TYPES
        and images.numel() > 0
        and images.shape[1] == 3
        and not (images.shape[2] % 2 or images.shape[3] % 2)
        and images.is_contiguous(memory_format=torch.channels_last)
        and not torch.compiler.is_compiling()
    )
