"""User-defined metrics, in the forms that people write them.

An object of the `Metric` protocol or of torchmetrics collects batches. A function f(outputs, targets) is averaged over
them, weighted by samples, so it should be a mean over samples itself.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import UsageError


@runtime_checkable
class Metric(Protocol):
    """A number, or several, of the whole set."""

    def update(self, outputs: Any, targets: Any) -> None:
        """Add one batch."""
        ...

    def state(self) -> Any:
        """Return all that was collected, as something that can be pickled."""
        ...

    def merge(self, state: Any) -> None:
        """Add what another worker's `state` returned."""
        ...

    def compute(self) -> Any:
        """Return the number of all that was collected, or a dict of numbers."""
        ...


class WeightedMean:
    """The mean of batch values weighted by samples, bit-identical in whatever order the batches come."""

    def __init__(self) -> None:
        self._pairs: list[tuple[float, int]] = []

    def add(self, value: float, samples: int) -> None:
        """Add a batch's value."""
        self._pairs.append((value, samples))

    def state(self) -> list[tuple[float, int]]:
        """Return the values and their weights."""
        return self._pairs

    def merge(self, state: list[tuple[float, int]]) -> None:
        """Add another worker's values."""
        self._pairs = [*self._pairs, *state]

    def compute(self) -> float:
        """Return the mean; nan for nothing."""
        samples = sum(n for _, n in self._pairs)
        # fsum rounds once, at the end: the order of the batches does not matter.
        return math.fsum(value * n for value, n in self._pairs) / samples if samples else math.nan


class FunctionMetric(WeightedMean):
    """The mean of a function f(outputs, targets), which returns one number per batch or one per sample."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self._function = deepcopy(function)  # it may be an object that remembers

    def add_batch(self, outputs: Any, targets: Any, samples: int) -> None:
        """Add one batch."""
        values = to_array(self._function(outputs, targets))
        if values.size == 1:
            self.add(float(values.reshape(())), samples)
        elif values.shape == (samples,):
            self.merge([(float(value), 1) for value in values])
        else:
            raise UsageError(
                f"metric={metric_name(self._function)!r} returned values of the shape {values.shape!r} for a batch of "
                f"{samples} samples. Return one number per batch, or one per sample."
            )

    def samples(self) -> list[float]:
        """Return the value of each sample; empty where a batch gave one number for several samples."""
        return [value for value, _ in self._pairs] if all(n == 1 for _, n in self._pairs) else []


def copy_metric(metric: Any) -> Any:
    """Return an object that collects from the start: a copy of the metric, or a `FunctionMetric` of a function.

    Example:
        >>> collector = copy_metric(lambda outputs, targets: abs(outputs - targets).mean())
        >>> add_batch(collector, np.ones(3), np.zeros(3), samples=3)
        >>> collector.compute()
        1.0
    """
    if not collects(metric):
        return FunctionMetric(metric)
    own = deepcopy(metric)
    if hasattr(own, "reset"):
        own.reset()
    return own


def add_batch(collector: Any, outputs: Any, targets: Any, samples: int) -> None:
    """Add one batch to what `copy_metric` returned."""
    if isinstance(collector, FunctionMetric):
        collector.add_batch(outputs, targets, samples)
    else:
        collector.update(outputs, targets)


def collects(metric: Any) -> bool:
    """Return whether a metric is an object that collects batches, as those of torchmetrics do."""
    return not isinstance(metric, type) and all(callable(getattr(metric, name, None)) for name in ("update", "compute"))


def metric_name(metric: Any) -> str:
    """Return the name of a metric's function or class."""
    return getattr(metric, "__name__", type(metric).__name__)


def to_array(value: Any) -> NDArray[np.float64]:
    """Return a number, tensor or array as float64."""
    return np.asarray(value.detach().cpu().double() if hasattr(value, "detach") else value, dtype=np.float64)
