"""Depthwise convolutions with a stride, whose backward pass in bfloat16 is slow on a CPU."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class StridedDepthwise(nn.Conv2d):
    """A depthwise `Conv2d` with a stride: forward as it is, gradients computed in fp32 when bf16 trains on a CPU.

    oneDNN has no fast bfloat16 kernel for these gradients; even with the casts, fp32 takes a third to a tenth of the
    time.
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
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], False]
        with torch.autocast("cpu", enabled=False):
            dx, dweight, _ = torch.ops.aten.convolution_backward(
                dy.float(), x.float(), weight.float(), None, stride, padding, dilation, False, [0, 0], groups, wanted
            )
        grads = [None if grad is None else grad.to(of.dtype) for grad, of in ((dx, x), (dweight, weight))]
        return (*grads, None, None, None, None)
