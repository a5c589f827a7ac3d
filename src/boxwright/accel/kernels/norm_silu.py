"""Batch-norm and SiLU as one operator for training on a CPU."""

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from boxwright.accel.kernels.native import at, find_kernel, fits, load_kernels


class NormSilu(nn.BatchNorm2d):
    """A `BatchNorm2d` followed by SiLU: the same parameters, statistics and values as the two modules.

    In training on a CPU, channels last, it reads and writes the activations half as often and keeps one tensor for the
    backward pass instead of two. Everywhere else it is exactly the two operators.
    """

    @classmethod
    def of(cls, norm: nn.BatchNorm2d) -> "NormSilu":
        """Return a module with the parameters and buffers of a batch-norm (shared, not copied)."""
        fused = cls(norm.num_features, eps=norm.eps, momentum=norm.momentum, device="meta")
        fused._parameters = norm._parameters
        fused._buffers = norm._buffers
        fused.training = norm.training
        return fused

    def forward(self, x: Tensor) -> Tensor:
        """Return silu(batch_norm(x))."""
        ready = self.training and self.weight.dtype == torch.float32 and self.momentum is not None and fits(x)
        if ready and (kernels := load_kernels()) is not None:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            out: Tensor = _NormSilu.apply(  # type: ignore[no-untyped-call]
                x, self.weight, self.bias, self.running_mean, self.running_var, self.momentum, self.eps, kernels
            )
            return out
        return F.silu(super().forward(x), inplace=True)


class _NormSilu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float,
        eps: float,
        kernels: ctypes.CDLL,
    ) -> Tensor:
        channels = x.shape[1]
        y = torch.empty_like(x, memory_format=torch.channels_last)
        mean, inverse = torch.empty(2, channels)
        failed = find_kernel(kernels, "norm_silu_forward", x)(
            *(at(t) for t in (x, y, weight, bias, running_mean, running_var, mean, inverse)),
            ctypes.c_int64(x.numel() // channels), ctypes.c_int64(channels),
            ctypes.c_float(momentum), ctypes.c_float(eps),
        )  # fmt: skip
        if failed:
            raise MemoryError("Out of memory for the sums of a batch-norm. Use a smaller batch.")
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        ctx.kernels = kernels
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, inverse = ctx.saved_tensors
        channels = x.shape[1]
        dy = dy.to(x.dtype).contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x, memory_format=torch.channels_last)
        dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
        failed = find_kernel(ctx.kernels, "norm_silu_backward", x)(
            *(at(t) for t in (x, dy, dx, weight, bias, mean, inverse, dweight, dbias)),
            ctypes.c_int64(x.numel() // channels), ctypes.c_int64(channels),
        )  # fmt: skip
        if failed:
            raise MemoryError("Out of memory for the sums of a batch-norm. Use a smaller batch.")
        return dx, dweight, dbias, None, None, None, None, None
