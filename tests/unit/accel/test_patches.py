"""Pixels packed by patches: the kernel gives the bits of PyTorch's operators."""

import pytest
import torch

from boxwright.accel.kernels import pack_patches
from boxwright.accel.kernels.native import load_kernels


def _bytes(size_hw: tuple[int, int], images: int = 2) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randint(0, 256, (images, *size_hw, 3), dtype=torch.uint8).permute(0, 3, 1, 2)


def _plain(x: torch.Tensor) -> torch.Tensor:
    return torch.cat((x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]), dim=1)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size_hw", [(2, 2), (4, 6), (32, 34), (62, 130)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_are_packed_exactly(dtype: torch.dtype, size_hw: tuple[int, int], threads: int) -> None:
    x = _bytes(size_hw)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        packed = pack_patches(x, dtype)
    finally:
        torch.set_num_threads(before)
    assert packed.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(packed, _plain(x.to(dtype)))


def test_every_byte_has_its_value() -> None:
    x = torch.arange(256, dtype=torch.uint8).repeat(3).view(1, 16, 16, 3).permute(0, 3, 1, 2)
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(pack_patches(x, dtype), _plain(x.to(dtype)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_types_take_the_operators_of_torch(dtype: torch.dtype) -> None:
    x = _bytes((4, 6))
    assert torch.equal(pack_patches(x, dtype), _plain(x.to(dtype)))


@pytest.mark.parametrize(
    "x",
    [_bytes((4, 6)).contiguous(), torch.randn(2, 3, 4, 6), _bytes((4, 6), images=0)],
    ids=["channels first", "floats", "no images"],
)
def test_images_that_do_not_fit_the_kernel_take_the_operators_of_torch(x: torch.Tensor) -> None:
    assert torch.equal(pack_patches(x, torch.float32), _plain(x.float()))


def test_the_kernel_is_there() -> None:
    assert load_kernels() is not None  # else the tests above compare torch with itself
