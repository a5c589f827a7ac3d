"""Low precision within a budget: the most sensitive layers are put back into float until the loss is allowed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from boxwright.core.log import get_logger
from boxwright.core.types import Precision
from boxwright.optimize.case import read_case
from boxwright.optimize.process import Channel
from boxwright.optimize.trial import Trial

_log = get_logger(__name__)
_FIRST = 2
_NAMED = 4
_RANK_SAMPLES = 4


def rank_case(case_file: Path, precision: Precision, channel: Channel) -> tuple[str, ...]:
    """Return the layers of a case, the most sensitive first (see `runtimes.sensitivity`); runs in a child."""
    from boxwright.runtimes.sensitivity import rank_layers  # imports torch

    channel.enter("rank")
    case = read_case(case_file)
    samples = case.calibration() or case.probes()  # bf16 needs no calibration
    ranked = rank_layers(case.source(), list(islice(samples, _RANK_SAMPLES)), precision)
    return tuple(name for name, _ in ranked)


def put_back(
    first: Trial,
    ranked: Sequence[str],
    attempt: Callable[[tuple[str, ...]], Trial],
    loss: Callable[[Trial], float],
    *,
    budget: float,
    tries: int,
) -> Trial:
    """Return the first trial within the budget, with 2, 4, 8, … layers in float; if there is none, the nearest one.

    At least one layer stays in low precision.

    Args:
        first: the trial with every layer in low precision.
        ranked: the layers, the most sensitive first.
        attempt: runs a trial with these layers kept in float.
        loss: how much a trial loses, as the budget counts it; infinite for one that failed.
        budget: how much may be lost.
        tries: the maximum number of trials.

    Example:
        >>> def attempt(kept): return Trial(status="successful", kept=kept)
        >>> first = Trial(status="successful")
        >>> found = put_back(first, ["a", "b", "c"], attempt, lambda t: 1 - len(t.kept) / 3, budget=0.4, tries=4)
        >>> found.kept, found.note
        (('a', 'b'), '2 of 3 layers kept in float: a, b')
    """
    nearest, count = first, _FIRST
    for _ in range(tries):
        if count >= len(ranked):
            break
        kept = tuple(ranked[:count])
        trial = attempt(kept)
        if trial.status == "successful":
            some = ", ".join(kept[:_NAMED]) + (", …" if len(kept) > _NAMED else "")
            trial = replace(trial, kept=kept, note=f"{len(kept)} of {len(ranked)} layers kept in float: {some}")
        _log.info("%d of %d layers in float: %s, loss %.4g", len(kept), len(ranked), trial.status, loss(trial))
        if loss(trial) < loss(nearest):
            nearest = trial
        if loss(nearest) <= budget:
            break
        count *= 2
    return nearest
