"""Low precision that keeps accuracy: the layers that suffer most are put back into float until the loss is allowed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from boxwright.core.log import get_logger
from boxwright.core.types import Precision
from boxwright.optimize.case import read_case
from boxwright.optimize.process import Channel
from boxwright.optimize.trial import Tried

_log = get_logger(__name__)
_FIRST = 2
_NAMED = 4
_RANK_SAMPLES = 4


@dataclass(frozen=True, slots=True)
class RankJob:
    """What a child does to find the layers that suffer most: see `runtimes.sensitivity`."""

    case: Path
    precision: Precision = Precision.INT8

    def __call__(self, channel: Channel) -> tuple[str, ...]:
        """Return module names, the one that suffers most first."""
        from boxwright.runtimes.sensitivity import rank_layers  # with torch

        channel.enter("rank")
        case = read_case(self.case)
        samples = case.calibration() or case.probes()  # bf16 needs no calibration
        ranked = rank_layers(case.source(), list(islice(samples, _RANK_SAMPLES)), self.precision)
        return tuple(name for name, _ in ranked)


def put_back(
    first: Tried,
    ranked: Sequence[str],
    attempt: Callable[[tuple[str, ...]], Tried],
    loss: Callable[[Tried], float],
    *,
    budget: float,
    tries: int,
) -> Tried:
    """Return the first try that loses no more than the budget with as few layers in float as it takes, or the nearest.

    The number of layers doubles from try to try: 2, 4, 8 and so on. At least one layer stays as it was.

    Args:
        first: the try with every layer in low precision.
        ranked: the layers, the one that suffers most first.
        attempt: makes a try with these layers kept in float.
        loss: how much a try loses, as the budget counts it; infinite for one that failed.
        budget: how much may be lost.
        tries: how many tries at most.

    Example:
        >>> def attempt(kept): return Tried(status="successful", kept=kept)
        >>> first = Tried(status="successful")
        >>> found = put_back(first, ["a", "b", "c"], attempt, lambda t: 1 - len(t.kept) / 3, budget=0.4, tries=4)
        >>> found.kept, found.note
        (('a', 'b'), '2 of 3 layers kept in float: a, b')
    """
    nearest, count = first, _FIRST
    for _ in range(tries):
        if count >= len(ranked):
            break
        kept = tuple(ranked[:count])
        tried = attempt(kept)
        if tried.status == "successful":
            tried = replace(tried, kept=kept, note=_describe(kept, len(ranked)))
        _log.info("%d of %d layers in float: %s, loss %.4g", len(kept), len(ranked), tried.status, loss(tried))
        if loss(tried) < loss(nearest):
            nearest = tried
        if loss(nearest) <= budget:
            break
        count *= 2
    return nearest


def _describe(kept: Sequence[str], count: int) -> str:
    some = ", ".join(kept[:_NAMED]) + (", …" if len(kept) > _NAMED else "")
    return f"{len(kept)} of {count} layers kept in float: {some}"
