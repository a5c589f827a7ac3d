"""Intervals from redrawing the samples of a score."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Rescore = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""Returns the scores of draws; its argument, (draws, samples), is how often each sample is in each draw."""


def paired_differences(
    first: Rescore, second: Rescore, *, samples: int, draws: int, seed: int = 0
) -> NDArray[np.float64]:
    """Return how much higher the first score is than the second on each of the same random draws of the samples.

    What both models find hard cancels out, so this interval is much narrower than that of either score.

    Args:
        first: the one scorer.
        second: the other.
        samples: how many there are; each draw has as many, with replacement.
        draws: how many draws.
        seed: of the draws.

    Example:
        >>> values = np.array([1.0, 2.0, 3.0])
        >>> found = paired_differences(lambda w: w @ values / 3, lambda w: w @ (values - 1) / 3, samples=3, draws=5)
        >>> found.round(6).tolist()
        [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    weights = np.random.default_rng(seed).multinomial(samples, np.full(samples, 1 / samples), size=draws)
    differences: NDArray[np.float64] = first(weights) - second(weights)
    return differences
