"""A user's optimizer on its way into a run."""

import torch
from torch import Tensor
from torch.optim import Optimizer

from boxwright.core.errors import UsageError


def scale_rate(optimizer: Optimizer, factor: float) -> None:
    """Multiply the learning rate.

    Raises:
        UsageError: a scheduler is there already.
    """
    for group in optimizer.param_groups:
        if "initial_lr" in group:  # a scheduler's mark; it would set the rate back
            raise UsageError(
                "auto_lr=True multiplies the rate in setup(), but a scheduler of this optimizer is there already. Make "
                "the scheduler after setup(), with the optimizer that setup() returns."
            )
        group["lr"] *= factor


def follow(optimizer: Optimizer, device: torch.device, dtype: torch.dtype) -> None:
    """Move an optimizer's state after its parameters, which keep their identity when a module moves."""
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 0:
                state[key] = value.to(device=device, dtype=dtype)
