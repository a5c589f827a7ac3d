"""Draws from torch's global generator, so that `torch.manual_seed` and worker seeding rule all transforms."""

from collections.abc import Sequence
from functools import lru_cache

import torch

from boxwright.core.errors import UsageError


def happens(probability: float) -> bool:
    """Return True with this probability."""
    return torch.rand(1).item() < probability


def uniform(low: float, high: float) -> float:
    """Return a number between `low` and `high`, all equally likely."""
    return float(torch.empty(1).uniform_(low, high).item())


def log_uniform(low: float, high: float) -> float:
    """Return a number between `low` and `high` whose logarithm is uniform: 1/2 is as likely as 2."""
    return float(torch.empty(1).uniform_(*_logarithms(low, high)).exp_().item())


@lru_cache(maxsize=64)
def _logarithms(low: float, high: float) -> tuple[float, float]:
    # In single precision, so that a seed gives the numbers that torchvision draws.
    first, last = torch.log(torch.tensor((low, high), dtype=torch.float32)).tolist()
    return first, last


def integer(low: int, high: int) -> int:
    """Return a whole number from `low` up to, not including, `high`."""
    return int(torch.randint(low, high, (1,)).item())


def probability(value: float) -> float:
    """Return the value, if it is a probability.

    Raises:
        UsageError: it is not between 0 and 1.
    """
    if not 0.0 <= value <= 1.0:
        raise UsageError(f"p={value!r} must be between 0 and 1.")
    return value


def limits(name: str, values: Sequence[float]) -> tuple[float, float]:
    """Return (smallest, largest) of a range of positive numbers.

    Raises:
        UsageError: they are not two positive numbers in rising order.
    """
    if isinstance(values, int | float) or len(values) != 2 or not 0 < values[0] <= values[1]:
        raise UsageError(f"{name}={values!r} must be (smallest, largest), both above 0.")
    return float(values[0]), float(values[1])
