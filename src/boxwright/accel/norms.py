"""Batch-norm statistics of several processes, each of which has seen different images."""

import torch
from torch import nn

from boxwright.accel.nano import TorchNano


@torch.no_grad()
def average_norms(nano: TorchNano, *networks: nn.Module, leave: tuple[str, ...] = ()) -> None:
    """Average the running means and variances of all networks over all processes.

    The published recipe does it before scoring. Weights are equal in every process, because gradients are shared; the
    statistics are not.

    Args:
        nano: the processes; a single one has nothing to do.
        networks: the same ones in every process.
        leave: prefixes of names to leave unchanged (frozen parts).
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
