"""The recipe's curves: the learning rate of a step, and the decay of the weights' moving average."""

import math
from dataclasses import dataclass

from boxwright.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupCosine:
    """Quadratic warm-up, cosine, then flat at the end while augmentation is off.

    Attributes:
        base_lr: the learning rate at the end of the warm-up.
        total_steps: all steps of the run.
        warmup_steps: steps until `base_lr` is reached.
        flat_steps: steps at the end at the lowest rate.
        lowest: the lowest rate as a fraction of `base_lr`.
        start_lr: the rate at step 0.

    Example:
        >>> curve = WarmupCosine(base_lr=0.01, total_steps=30_000, warmup_steps=500, flat_steps=1_500)
        >>> curve(0), curve(500), curve(29_000)
        (0.0, 0.01, 0.0005)
    """

    base_lr: float
    total_steps: int
    warmup_steps: int = 0
    flat_steps: int = 0
    lowest: float = 0.05
    start_lr: float = 0.0

    def __post_init__(self) -> None:
        if self.total_steps < 1 or min(self.warmup_steps, self.flat_steps) < 0:
            raise UsageError(f"A schedule needs at least one step and no negative phases: {self!r}.")
        if self.warmup_steps + self.flat_steps > self.total_steps:
            raise UsageError(
                f"warmup_steps={self.warmup_steps!r} and flat_steps={self.flat_steps!r} are more than "
                f"total_steps={self.total_steps!r} together. Shorten them or train longer."
            )

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.start_lr + (self.base_lr - self.start_lr) * (step / self.warmup_steps) ** 2
        floor = self.base_lr * self.lowest
        if step >= self.total_steps - self.flat_steps:
            return floor
        done = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps - self.flat_steps)
        return floor + 0.5 * (self.base_lr - floor) * (1 + math.cos(math.pi * done))


def ema_decay(step: int, *, base: float = 0.9998, ramp: float = 2000.0) -> float:
    """Return the decay of the moving average at a step, counted from 1; it rises from near 0 to `base`.

    Example:
        >>> round(ema_decay(2000), 6)
        0.631994
    """
    return base * (1 - math.exp(-step / ramp))
