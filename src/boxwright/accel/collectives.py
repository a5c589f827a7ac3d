"""Values exchanged between the processes of a run; a process alone keeps its own."""

from typing import Any

import torch
from torch import Tensor, distributed

from boxwright.core.errors import UsageError


def all_reduce(value: Tensor, reduce_op: str, world_size: int) -> Tensor:
    """Return the mean or sum of a tensor over all processes; the given tensor stays as it is.

    Raises:
        UsageError: it is neither of them.
    """
    if reduce_op not in ("mean", "sum"):
        raise UsageError(f"Unknown reduce_op {reduce_op!r}. Choose from: mean, sum.")
    if world_size == 1:
        return value
    total = value.detach().clone()
    distributed.all_reduce(total)
    return total / world_size if reduce_op == "mean" else total


def all_gather(value: Any, world_size: int) -> Any:
    """Return every process's tensor stacked, or for other values the list of them."""
    if world_size == 1:
        return value
    if not isinstance(value, Tensor):
        objects: list[Any] = [None] * world_size
        distributed.all_gather_object(objects, value)
        return objects
    parts = [torch.empty_like(value) for _ in range(world_size)]
    distributed.all_gather(parts, value.detach().contiguous())
    return torch.stack(parts)


def broadcast(value: Any, src: int, world_size: int) -> Any:
    """Return one process's value in all of them."""
    if world_size == 1:
        return value
    holder = [value]
    distributed.broadcast_object_list(holder, src=src)
    return holder[0]
