"""A model's score, and the interval of the difference between two scores."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from boxwright.core.bootstrap import paired_differences
from boxwright.core.signature import Array
from boxwright.runtimes.base import Graph

Direction = Literal["max", "min"]
DRAWS = 200
"""How many times the samples are redrawn for an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A model's score on all samples, with what the scorer needs to score other draws of them.

    Attributes:
        value: the score.
        count: how many samples can be redrawn; 0 where the metric gives a single number.
        arrays: in the scorer's own format.
    """

    value: float
    count: int = 0
    arrays: Mapping[str, Array] = field(default_factory=dict)


class Scorer(Protocol):
    """Scores a loaded model on the data that it holds."""

    @property
    def name(self) -> str:
        """What the score is called."""

    @property
    def direction(self) -> Direction:
        """Whether more or less is better."""

    def score(self, graph: Graph) -> Score:
        """Return the model's score."""

    def resample(self, score: Score, weights: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the scores of other draws; `weights` (draws, samples) is how often each sample is in each draw."""

    def fingerprint(self) -> str:
        """Return a text that changes with the data and the metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """How much of the score was lost; positive is worse.

    Attributes:
        point: the difference of the two scores.
        low: the loss is above this with the given confidence.
        high: the loss is below this with the given confidence; a budget is compared with this.
        sure: whether there is an interval; without one, `low` and `high` equal `point`.
    """

    point: float
    low: float
    high: float
    sure: bool


def measure_drop(
    scorer: Scorer, original: Score, candidate: Score, *, confidence: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> Drop:
    """Return how much worse the candidate is than the original, with a paired bootstrap interval where possible.

    `confidence` is that of each end of the interval.
    """
    sign = 1.0 if scorer.direction == "max" else -1.0
    point = sign * (original.value - candidate.value)
    count = original.count
    if count < 2 or candidate.count != count:
        return Drop(point=point, low=point, high=point, sure=False)
    drops = sign * paired_differences(
        partial(scorer.resample, original), partial(scorer.resample, candidate), samples=count, draws=draws, seed=seed
    )
    low, high = np.quantile(drops, [1 - confidence, confidence])
    # With very few samples the point may lie outside; a bound better than the measured loss would mislead.
    return Drop(point=point, low=min(float(low), point), high=max(float(high), point), sure=True)
