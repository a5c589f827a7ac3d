"""Batch-norm statistics of several processes, each of which has seen other images."""

import torch
from torch import nn

from boxwright.accel.nano import TorchNano


@torch.no_grad()
def average_norms(nano: TorchNano, *networks: nn.Module, leave: tuple[str, ...] = ()) -> None:
    """Give every process the mean of all processes' running means and variances, in all networks at once.

    What the published recipe does before it scores. Weights and biases are the same in every process already, because
    gradients are shared; the statistics are not.

    Args:
        nano: who the processes are; one alone has nothing to do.
        networks: the same ones in every process.
        leave: the starts of names that stay as they are (frozen parts).
    """
    if not nano.is_distributed:
        return
    buffers = [
        buffer
        for network in networks
        for name, buffer in network.named_buffers()
        if name.endswith(("running_mean", "running_var")) and not name.startswith(leave)
    ]
    if not buffers:
        return
    means = nano.all_reduce(torch.cat([buffer.reshape(-1) for buffer in buffers]))
    parts = torch.split(means, [buffer.numel() for buffer in buffers])
    for buffer, mean in zip(buffers, parts, strict=True):
        buffer.copy_(mean.view_as(buffer))
