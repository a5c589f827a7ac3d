"""Depthwise convolutions with a stride, whose backward pass in bfloat16 is slow on a CPU."""

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from boxwright.accel.kernels.native import at, find_kernel, fits, load_kernels


class StridedDepthwise(nn.Conv2d):
    """A depthwise `Conv2d` with a stride: forward as it is, gradients of our own when bf16 trains on a CPU.

    oneDNN has no fast bfloat16 kernel for these gradients. Without ours, or with another kernel than 3x3 at stride 2,
    they are computed in fp32: even with the casts that takes a third to a tenth of oneDNN's time.
    """

    @classmethod
    def of(cls, conv: nn.Conv2d) -> "StridedDepthwise":
        """Return a module with the parameters of a convolution (shared, not copied)."""
        made = cls(
            conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation,  # type: ignore[arg-type]
            conv.groups, conv.bias is not None, device="meta",
        )  # fmt: skip
        made._parameters = conv._parameters
        made.training = conv.training
        return made

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of x."""
        reduced = x.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")
        if not (self.training and x.is_cpu and reduced and self.bias is None) or torch.compiler.is_compiling():
            return super().forward(x)
        out: Tensor = _Convolve.apply(  # type: ignore[no-untyped-call]
            x.to(torch.bfloat16), self.weight, self.stride, self.padding, self.dilation, self.groups
        )
        return out


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        stride: tuple[int, int],
        padding: tuple[int, int],
        dilation: tuple[int, int],
        groups: int,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.settings = (stride, padding, dilation, groups)
        return F.conv2d(x, weight.to(x.dtype), None, stride, padding, dilation, groups)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.settings
        dy = dy.to(x.dtype).contiguous(memory_format=torch.channels_last)
        plain = (weight.shape[2:], stride, padding, dilation) == ((3, 3), (2, 2), (1, 1), (1, 1))
        if plain and fits(x) and (kernels := load_kernels()) is not None:
            return (*_backward(kernels, x, weight, dy, wants_dx=ctx.needs_input_grad[0]), None, None, None, None)
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], False]
        with torch.autocast("cpu", enabled=False):
            dx, dweight, _ = torch.ops.aten.convolution_backward(
                dy.float(), x.float(), weight.float(), None, stride, padding, dilation, False, [0, 0], groups, wanted
            )
        grads = [None if grad is None else grad.to(of.dtype) for grad, of in ((dx, x), (dweight, weight))]
        return (*grads, None, None, None, None)


def _backward(
    kernels: ctypes.CDLL, x: Tensor, weight: Tensor, dy: Tensor, *, wants_dx: bool
) -> tuple[Tensor | None, Tensor]:
    """Return the gradients of the input, if wanted, and of the weight (C, 1, 3, 3)."""
    images, channels, height, width = x.shape
    dx = torch.empty_like(x, memory_format=torch.channels_last) if wants_dx else None
    taps = weight.detach().view(channels, 9).t().float().contiguous()
    dtaps = torch.empty_like(taps)
    sizes = (ctypes.c_int64(size) for size in (images, height, width, channels))
    if find_kernel(kernels, "depthwise_backward", x)(*(at(t) for t in (x, dy, dx, taps, dtaps)), *sizes):
        raise MemoryError("Out of memory for the sums of a depthwise convolution. Use a smaller batch.")
    return dx, dtaps.t().reshape(weight.shape).to(weight.dtype)
