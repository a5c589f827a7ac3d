"""Numbers of a whole set, whatever the number of workers: each sample counts once.

Three forms are taken. Objects of the `Metric` protocol: every worker's state is merged, then computed. Metrics of
torchmetrics: they combine their states themselves, each by its own rule. Functions f(outputs, targets): the mean of
their values weighted by samples, which is the whole set's number only where the function is itself a mean over samples.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, distributed

from boxwright.accel.estimator.step import Result
from boxwright.accel.nano import TorchNano
from boxwright.core.errors import UsageError


@runtime_checkable
class Metric(Protocol):
    """A number, or several, of the whole set."""

    def update(self, outputs: Any, targets: Any) -> None:
        """Take in one batch."""
        ...

    def state(self) -> Any:
        """Return all that was taken in, as something that can be pickled."""
        ...

    def merge(self, state: Any) -> None:
        """Take in what another worker's `state` returned."""
        ...

    def compute(self) -> Any:
        """Return the number of all that was taken in, or a dict of numbers."""
        ...


class Evaluator(Protocol):
    """What `EvaluatorMetric` makes a metric of: something that collects, merges and gives numbers at the end."""

    def state(self) -> Any:
        """Return all that was collected."""
        ...

    def merge(self, other: Any) -> None:
        """Take in another one of its kind."""
        ...

    def evaluate(self) -> Any:
        """Return the numbers."""
        ...


class EvaluatorMetric:
    """A metric on an evaluator such as `CocoEvaluator`, which also has `from_state`.

    Args:
        evaluator: an empty one, of the right classes.
        add: `add(evaluator, outputs, targets)` takes in one batch.

    Example:
        >>> from boxwright.evaluation.coco import CocoEvaluator
        >>> metric = EvaluatorMetric(CocoEvaluator(["cat"]), add=lambda evaluator, outputs, targets: None)
        >>> metric.compute()["images"]
        0
    """

    def __init__(self, evaluator: Evaluator, add: Callable[[Any, Any, Any], None]) -> None:
        self._evaluator = evaluator
        self._add = add

    def update(self, outputs: Any, targets: Any) -> None:
        """Add one batch."""
        self._add(self._evaluator, outputs, targets)

    def state(self) -> Any:
        """Return what the evaluator collected."""
        return self._evaluator.state()

    def merge(self, state: Any) -> None:
        """Take in another evaluator's state."""
        kind: Any = type(self._evaluator)
        self._evaluator.merge(kind.from_state(state))

    def compute(self) -> Any:
        """Return the evaluator's numbers, as plain values where it gives a `to_dict`."""
        numbers = self._evaluator.evaluate()
        return numbers.to_dict() if hasattr(numbers, "to_dict") else numbers


class Accuracy:
    """The part of samples whose largest output is the target's class.

    Example:
        >>> metric = Accuracy()
        >>> metric.update(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        >>> metric.compute()
        0.5
    """

    def __init__(self) -> None:
        self._right = self._all = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in logits (N, classes) and class numbers (N,)."""
        self._right += int((outputs.argmax(dim=1) == targets).sum())
        self._all += len(targets)

    def state(self) -> tuple[int, int]:
        """Return how many were right, and how many there were."""
        return self._right, self._all

    def merge(self, state: tuple[int, int]) -> None:
        """Add another worker's counts."""
        self._right += state[0]
        self._all += state[1]

    def compute(self) -> float:
        """Return the part that was right; nan for an empty set."""
        return self._right / self._all if self._all else math.nan


class WeightedMean:
    """The mean of batch values weighted by samples, the same to the bit however batches were dealt out."""

    def __init__(self) -> None:
        self._pairs: list[tuple[float, int]] = []

    def add(self, value: float, samples: int) -> None:
        """Take in a batch's value."""
        self._pairs.append((value, samples))

    def state(self) -> list[tuple[float, int]]:
        """Return the values and their weights."""
        return self._pairs

    def merge(self, state: list[tuple[float, int]]) -> None:
        """Take in another worker's values."""
        self._pairs = [*self._pairs, *state]

    def compute(self) -> float:
        """Return the mean; nan for nothing."""
        samples = sum(n for _, n in self._pairs)
        # fsum rounds once, at the end: the order of the batches does not matter.
        return math.fsum(value * n for value, n in self._pairs) / samples if samples else math.nan


class _FunctionMetric(WeightedMean):
    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self._function = function

    def take(self, result: Result) -> None:
        self.add(float(self._function(result.outputs, result.targets)), result.samples)


class _TorchMetric:
    """A metric of torchmetrics. Its `compute` talks to the other workers, so all of them must call it."""

    collective = True

    def __init__(self, metric: Any) -> None:
        self._metric = metric

    def update(self, outputs: Any, targets: Any) -> None:
        self._metric.update(outputs, targets)

    def compute(self) -> Any:
        with warnings.catch_warnings():
            # A worker without a batch is no mistake here.
            warnings.filterwarnings("ignore", message="The ``compute`` method of metric", category=UserWarning)
            return self._metric.compute()


def name_metrics(metrics: Any) -> dict[str, Any]:
    """Return a user's metrics by name: those of a dict, otherwise each by its class or function name.

    Raises:
        UsageError: one is no metric, or two have the same name.
    """
    if metrics is None:
        return {}
    if isinstance(metrics, Mapping):
        named = {str(name): metric for name, metric in metrics.items()}
    else:
        found = list(metrics) if isinstance(metrics, Sequence) else [metrics]
        named = {}
        for metric in found:
            name = getattr(metric, "__name__", type(metric).__name__)
            if name in named:
                raise UsageError(f"Two metrics are called {name!r}. Give a dict with a name for each.")
            named[name] = metric
    for name, metric in named.items():
        _adapt(name, metric)
    return named


class Metrics:
    """All metrics of one evaluation in one worker, fresh copies of the user's."""

    def __init__(self, named: Mapping[str, Any], device: torch.device) -> None:
        self._metrics: dict[str, Any] = {}
        for name, metric in named.items():
            own = deepcopy(metric)
            self._metrics[name] = _adapt(name, own.to(device) if _is_torchmetrics(own) else own)

    def update(self, result: Result) -> None:
        """Take in one batch."""
        for metric in self._metrics.values():
            if isinstance(metric, _FunctionMetric):
                metric.take(result)
            else:
                metric.update(result.outputs, result.targets)

    def compute(self, nano: TorchNano) -> dict[str, Any]:
        """Return the numbers of the whole set in the first worker, and an empty dict in the others."""
        numbers: dict[str, Any] = {}
        for name, metric in self._metrics.items():
            if getattr(metric, "collective", False):
                value = metric.compute()
            else:
                states = gather(nano, metric.state())
                if not nano.is_global_zero:
                    continue
                for state in states[1:]:
                    metric.merge(state)
                value = metric.compute()
            numbers |= _flatten(name, value)
        return numbers if nano.is_global_zero else {}


def gather(nano: TorchNano, value: Any) -> list[Any]:
    """Return every worker's value in the first worker, in the order of ranks; an empty list in the others."""
    if not nano.is_distributed:
        return [value]
    if not nano.hardware.gathers_to_one:
        everyones: list[Any] = nano.all_gather((value,))
        return [one for (one,) in everyones] if nano.is_global_zero else []
    found: list[Any] | None = [None] * nano.world_size if nano.is_global_zero else None
    distributed.gather_object(value, found, dst=0)
    return found or []


def _adapt(name: str, metric: Any) -> Any:
    if _is_torchmetrics(metric):
        return _TorchMetric(metric)
    if isinstance(metric, type):
        raise UsageError(f"The metric {name!r} is a class. Give an object: {metric.__name__}(…).")
    if isinstance(metric, Metric):
        return metric
    if callable(metric):
        return _FunctionMetric(metric)
    missing = [m for m in ("update", "state", "merge", "compute") if not hasattr(metric, m)]
    raise UsageError(
        f"The metric {name!r} is a {type(metric).__name__} without {', '.join(missing)}. Give an object with update, "
        "state, merge and compute, a metric of torchmetrics, or a function of outputs and targets."
    )


def _is_torchmetrics(metric: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "torchmetrics" for kind in type(metric).__mro__)


def _flatten(name: str, value: Any) -> dict[str, Any]:
    """Return a metric's value under its name; a dict's values each under their own."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return {name: _plain(value)}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else value.detach().cpu().tolist()
    return value.item() if isinstance(value, np.generic) else value
