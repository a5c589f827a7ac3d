"""The metrics and losses of a whole set: collected batch by batch in every worker, combined in the first one.

Metrics of the `Metric` protocol are merged, then computed. Metrics of torchmetrics combine their states themselves.
Functions f(outputs, targets) are averaged over the batches, weighted by samples.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from boxwright.accel.estimator.blueprint import Result
from boxwright.accel.nano import TorchNano
from boxwright.core.errors import UsageError
from boxwright.core.metrics import FunctionMetric, Metric, WeightedMean, add_batch, copy_metric, metric_name
from boxwright.core.packages import is_from

LOSS, SAMPLES = "loss", "num_samples"
"""The names of the numbers that every evaluation returns."""


class EvaluatorMetric:
    """A metric on an evaluator such as `CocoEvaluator`.

    Args:
        evaluator: an empty one, of the right classes; it has `state`, `merge`, `evaluate` and `from_state`.
        add: `add(evaluator, outputs, targets)` adds one batch.

    Example:
        >>> from boxwright.evaluation.coco import CocoEvaluator
        >>> metric = EvaluatorMetric(CocoEvaluator(["cat"]), add=lambda evaluator, outputs, targets: None)
        >>> metric.compute()["images"]
        0
    """

    def __init__(self, evaluator: Any, add: Callable[[Any, Any, Any], None]) -> None:
        self._evaluator = evaluator
        self._add = add

    def update(self, outputs: Any, targets: Any) -> None:
        """Add one batch."""
        self._add(self._evaluator, outputs, targets)

    def state(self) -> Any:
        """Return what the evaluator collected."""
        return self._evaluator.state()

    def merge(self, state: Any) -> None:
        """Add another evaluator's state."""
        self._evaluator.merge(type(self._evaluator).from_state(state))

    def compute(self) -> Any:
        """Return the evaluator's numbers, as plain values where it has a `to_dict`."""
        numbers = self._evaluator.evaluate()
        return numbers.to_dict() if hasattr(numbers, "to_dict") else numbers


class Accuracy:
    """The fraction of samples whose predicted class is the target's.

    Outputs are scores (N, classes), of which the largest counts; one probability per sample, (N,) or (N, 1); or class
    numbers. Targets are class numbers, (N,) or (N, 1), or one-hot rows (N, classes). Further dimensions, such as those
    of segmentation, count element by element.

    Args:
        threshold: above it, one probability per sample means class 1. Use 0 for logits.

    Example:
        >>> metric = Accuracy()
        >>> metric.update(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        >>> metric.compute()
        0.5
    """

    def __init__(self, threshold: float = 0.5) -> None:
        self._threshold = threshold
        self._right = self._all = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add one batch.

        Raises:
            UsageError: the shapes or values don't fit together.
        """
        found, expected = self._find_classes(outputs, targets)
        if found.shape != expected.shape:  # broadcasting would compare every sample with every target
            raise _not_comparable(outputs, targets)
        self._right += int((found == expected).sum())
        self._all += found.numel()

    def _find_classes(self, outputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
        """Return the predicted and the expected classes."""
        if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.ndim and targets.ndim):
            raise _not_comparable(outputs, targets)
        if not outputs.is_floating_point():
            return _drop_column(outputs), _drop_column(targets)
        if outputs.ndim == 1 or outputs.shape[1] == 1:
            return self._find_side(_drop_column(outputs), _drop_column(targets))
        largest = outputs.argmax(dim=1)
        if targets.shape != outputs.shape:
            return largest, targets if targets.shape == largest.shape else _drop_column(targets)
        if not ((targets == 0) | (targets == 1)).all() or not (targets.sum(dim=1) == 1).all():
            raise UsageError(
                f"Accuracy got targets of the shape {tuple(targets.shape)!r} that are not one-hot: some sample does "
                "not have exactly one class. Use a metric for several labels, such as torchmetrics' MultilabelAccuracy."
            )
        return largest, targets.argmax(dim=1)

    def _find_side(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return on which side of the threshold each output is, and should be."""
        if 0 < self._threshold < 1 and ((outputs < 0) | (outputs > 1)).any():
            raise UsageError(
                "Accuracy got one output per sample that is not a probability: it is below 0 or above 1. For logits "
                "use Accuracy(threshold=0)."
            )
        if not ((targets == 0) | (targets == 1)).all():
            raise UsageError(
                "Accuracy got one output per sample, so that there are two classes, but targets other than 0 and 1. "
                "Return one output per class."
            )
        return outputs > self._threshold, targets == 1

    def state(self) -> tuple[int, int]:
        """Return how many were right, and how many there were."""
        return self._right, self._all

    def merge(self, state: tuple[int, int]) -> None:
        """Add another worker's counts."""
        self._right += state[0]
        self._all += state[1]

    def compute(self) -> float:
        """Return the fraction that was right; nan for an empty set."""
        return self._right / self._all if self._all else math.nan


def _drop_column(values: Tensor) -> Tensor:
    """Return (N, 1, …) as (N, …)."""
    return values.squeeze(1) if values.ndim > 1 else values


def _not_comparable(outputs: Any, targets: Any) -> UsageError:
    left, right = (
        f"of the shape {tuple(v.shape)!r}" if isinstance(v, Tensor) else f"as {type(v).__name__}"
        for v in (outputs, targets)
    )
    return UsageError(
        f"Accuracy can't compare outputs {left} with targets {right}. Give scores (N, classes) with class numbers "
        "(N,) or one-hot rows (N, classes), or one probability per sample with targets of 0 and 1. For other outputs "
        "give a function f(outputs, targets)."
    )


def name_metrics(metrics: Any) -> dict[str, Any]:
    """Return a user's metrics by name: the names of a dict, otherwise those of the classes or functions."""
    if metrics is None:
        return {}
    if isinstance(metrics, Mapping):
        pairs = [(str(name), metric) for name, metric in metrics.items()]
    else:
        pairs = [(metric_name(metric), metric) for metric in (metrics if isinstance(metrics, Sequence) else [metrics])]
    named: dict[str, Any] = {}
    for name, metric in pairs:
        if name in named:
            raise UsageError(f"Two metrics are called {name!r}. Give a dict with a name for each.")
        if name in (LOSS, SAMPLES):
            raise UsageError(
                f"A metric is called {name!r}, as one of the numbers that are always returned. Give a dict with "
                "another name for it."
            )
        named[name] = metric
    for name, metric in named.items():
        if isinstance(metric, type):
            raise UsageError(f"The metric {name!r} is a class. Give an object: {metric.__name__}(…).")
        if not (is_from(metric, "torchmetrics") or isinstance(metric, Metric) or callable(metric)):
            missing = [m for m in ("update", "state", "merge", "compute") if not hasattr(metric, m)]
            raise UsageError(
                f"The metric {name!r} is a {type(metric).__name__} without {', '.join(missing)}. Give an object with "
                "update, state, merge and compute, a metric of torchmetrics, or a function of outputs and targets."
            )
    return named


class Metrics:
    """All metrics of one evaluation in one worker, fresh copies of the user's."""

    def __init__(self, named: Mapping[str, Any], device: torch.device) -> None:
        self._metrics: dict[str, Any] = {}
        for name, metric in named.items():
            if is_from(metric, "torchmetrics"):
                self._metrics[name] = copy_metric(metric).to(device)
            else:
                self._metrics[name] = copy_metric(metric) if isinstance(metric, Metric) else FunctionMetric(metric)

    def update(self, result: Result) -> None:
        """Add one batch."""
        for metric in self._metrics.values():
            add_batch(metric, result.outputs, result.targets, result.samples)

    def compute(self, nano: TorchNano) -> dict[str, Any]:
        """Return the numbers of the whole set in the first worker, and an empty dict in the others."""
        numbers: dict[str, Any] = {}
        for name, metric in self._metrics.items():
            if is_from(metric, "torchmetrics"):
                # Its compute() is a collective: every worker calls it, also one without a batch.
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="The ``compute`` method of metric", category=UserWarning)
                    numbers = join_numbers(numbers, _flatten(name, metric.compute()))
                continue
            states = gather(nano, metric.state())
            if nano.is_global_zero:
                for state in states[1:]:
                    metric.merge(state)
                numbers = join_numbers(numbers, _flatten(name, metric.compute()))
        return numbers if nano.is_global_zero else {}


class LossMeans:
    """The mean of each loss over all batches of all workers."""

    def __init__(self) -> None:
        self._means: dict[str, WeightedMean] = {}
        self._samples = 0

    def update(self, result: Result) -> None:
        """Add one batch."""
        self._samples += result.samples
        for name, value in result.losses.items():
            self._means.setdefault(name, WeightedMean()).add(float(value.detach()), result.samples)

    def compute(self, nano: TorchNano) -> tuple[dict[str, float], int]:
        """Return the means and the number of samples in the first worker; nothing in the others."""
        means: dict[str, WeightedMean] = {}
        samples = 0
        for states, count in gather(nano, ({name: mean.state() for name, mean in self._means.items()}, self._samples)):
            samples += count
            for name, state in states.items():
                means.setdefault(name, WeightedMean()).merge(state)
        return {name: mean.compute() for name, mean in means.items()}, samples


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


def join_numbers(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return all numbers of several dicts.

    Raises:
        UsageError: two have the same name.
    """
    joined: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if name in joined:
                raise UsageError(
                    f"Two losses or metrics are called {name!r}. Give from_torch() a dict of metrics with other names, "
                    "or rename the loss."
                )
            joined[name] = value
    return joined


def _flatten(name: str, value: Any) -> dict[str, Any]:
    """Return a metric's value under its name; a dict's values each under `name_key`."""
    if isinstance(value, Mapping):
        return {f"{name}_{key}": _plain(one) for key, one in value.items()}
    return {name: _plain(value)}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else value.detach().cpu().tolist()
    return value.item() if isinstance(value, np.generic) else value
