"""Values exchanged between the processes of a run; a single process gets its own value back."""

from typing import Any

import torch
from torch import Tensor, distributed

from boxwright.core.errors import check_choice
from boxwright.devices.base import Device


def all_reduce(value: Tensor, reduce_op: str, world_size: int, device: Device, place: torch.device) -> Tensor:
    """Return the mean or sum of a tensor over all processes, on its own device; the argument is unchanged."""
    check_choice("reduce_op", reduce_op, ("mean", "sum"))
    if world_size == 1:
        return value
    total = add_up(value, device, place)
    return total / world_size if reduce_op == "mean" else total


def add_up(value: Tensor, device: Device, place: torch.device, group: Any = None) -> Tensor:
    """Return the sum of a tensor over all processes, on its own device; host tensors are sent from the accelerator."""
    if value.dtype is torch.int64 and not device.reduces_int64:
        return _add_up_pieces(value, place, group)
    total = value.detach().to(place, copy=True)
    distributed.all_reduce(total, group=group)
    return total.to(value.device)


def _add_up_pieces(value: Tensor, place: torch.device, group: Any) -> Tensor:
    """Return the exact sum of 64-bit integers, in 16-bit pieces whose sums fit into 32 bits for 32768 processes."""
    numbers = value.detach().cpu()
    pieces = torch.stack([numbers >> 48, *((numbers >> shift) & 0xFFFF for shift in (32, 16, 0))]).int().to(place)
    distributed.all_reduce(pieces, group=group)
    sums = pieces.cpu().long()
    total = (sums[0] << 48) + (sums[1] << 32) + (sums[2] << 16) + sums[3]
    return total.to(value.device)


def all_gather(value: Any, world_size: int, place: torch.device) -> Any:
    """Return every process's tensor stacked, on its own device, or for other values a list."""
    if world_size == 1:
        return value
    if not isinstance(value, Tensor):
        objects: list[Any] = [None] * world_size
        distributed.all_gather_object(objects, value)
        return objects
    own = value.detach().to(place).contiguous()
    parts = [torch.empty_like(own) for _ in range(world_size)]
    distributed.all_gather(parts, own)
    return torch.stack(parts).to(value.device)


def broadcast(value: Any, src: int, world_size: int) -> Any:
    """Return one process's value in all of them."""
    if world_size == 1:
        return value
    holder = [value]
    distributed.broadcast_object_list(holder, src=src)
    return holder[0]
