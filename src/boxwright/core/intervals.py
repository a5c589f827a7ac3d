"""The interval of a mean difference that was measured a few times."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and its bounds; each holds with the given confidence.

    Attributes:
        mean: of the values.
        low: the true mean is above this with the confidence.
        high: the true mean is below this with the confidence.
        confidence: of each bound.
    """

    mean: float
    low: float
    high: float
    confidence: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """Return the mean of two or more values with the bounds of Student's t.

    Example:
        >>> str(mean_interval([0.01, 0.02, 0.03]))
        '+0.0200 [+0.0031, +0.0369]'
    """
    found = np.asarray(values, float)
    mean, count = float(found.mean()), len(found)
    half = student_t(confidence, count - 1) * float(found.std(ddof=1)) / float(np.sqrt(count))
    return Interval(mean=mean, low=mean - half, high=mean + half, confidence=confidence)


def student_t(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution.

    Example:
        >>> round(student_t(0.95, 2), 3), round(student_t(0.975, 10), 3)
        (2.92, 2.228)
    """
    # With t = sqrt(degrees) * tan(angle) the density is cos(angle) ** (degrees - 1), which is easy to add up.
    angles = np.linspace(-np.pi / 2, np.pi / 2, 200_001)
    density = np.cos((angles[:-1] + angles[1:]) / 2) ** (degrees - 1)
    sums = np.concatenate([[0.0], np.cumsum(density)])
    angle = np.interp(probability, sums / sums[-1], angles)
    return float(np.sqrt(degrees) * np.tan(angle))
