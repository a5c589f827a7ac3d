"""Accuracy by the user's own metric, in any of its common forms."""

import hashlib
import inspect
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from boxwright.core.batches import BatchForm, count_samples, is_loader, iterate, parameters_of, required_inputs
from boxwright.core.errors import UsageError
from boxwright.core.metrics import add_batch, collects, copy_metric, metric_name, to_array
from boxwright.core.structure import flatten
from boxwright.launchers.payload import pack
from boxwright.optimize.accuracy import Direction, Score
from boxwright.optimize.model import OptimizedModel
from boxwright.runtimes.base import Graph

Kind = Literal["pairs", "stateful", "model", "model and data"]
_DATA_NAMES = ("loader", "data_loader", "dataloader", "data", "dataset", "validation_data", "val_loader", "batches")
_TARGET_NAMES = ("target", "targets", "label", "labels", "truth", "y", "y_true")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricScorer:
    """Scores a model with a function or a torchmetrics metric.

    Attributes:
        metric: see `find_kind` for its forms.
        data: a loader, or one batch; None where the metric has its own.
        form: how a batch is split into inputs and target.
        direction: whether more or less is better.
        model: the model that is scored in its converted forms; a metric that takes the model may read its attributes.
    """

    metric: Any
    data: Any
    form: BatchForm
    direction: Direction = "max"
    model: Any = None

    def __post_init__(self) -> None:
        kind = find_kind(self.metric)
        if kind != "model" and self.data is None:
            raise UsageError(f"metric={self.name!r} needs data to compare with. Give validation_data.")

    @property
    def name(self) -> str:
        """The metric's own name."""
        return metric_name(self.metric)

    def score(self, graph: Graph) -> Score:
        """Return the score of a loaded model, with the result of each sample where the metric gives them."""
        torch = sys.modules.get("torch")
        if torch is not None:  # a loader that shuffles gives every model the same order
            torch.manual_seed(0)
        model, kind = OptimizedModel(graph), find_kind(self.metric)
        if self.model is not None and kind != "pairs":
            from boxwright.optimize.module import as_module  # imports torch, as the model's own code does

            model = as_module(model, self.model)
        if kind == "model":
            return _to_score(self.metric(model))
        if kind == "model and data":
            return _to_score(self.metric(model, self.data))
        collector, empty = copy_metric(self.metric), True
        for batch in iterate(self.data):
            empty = False
            (args, kwargs), target = self.form.split(batch)
            if target is None:
                raise UsageError(
                    f"metric={self.name!r} compares with a target, but the batches of validation_data hold only inputs."
                )
            add_batch(collector, model(*args, **kwargs), target, count_samples(batch))
        if empty:
            raise UsageError(f"validation_data gave no batch, so metric={self.name!r} has nothing to score.")
        samples = collector.samples() if kind == "pairs" else []
        return _to_score(samples or collector.compute())

    def resample(self, score: Score, weights: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the means of other draws."""
        samples = score.arrays["samples"].astype(np.float64)
        means: NDArray[np.float64] = weights @ samples / weights.sum(axis=1)
        return means

    def fingerprint(self) -> str:
        """Return a hash of the metric, its source file and all batches.

        It is different each time for a metric with its own data, f(model), and for data that can't be read here: what
        was scored with them is scored again.
        """
        hidden = find_kind(self.metric) == "model" or isinstance(self.data, str | bytes | os.PathLike)
        if hidden or (find_kind(self.metric) == "model and data" and not _has_length(self.data)):
            return uuid4().hex
        digest = hashlib.sha256(pack(self.metric, "The metric"))
        digest.update(_source_of(self.metric))
        torch = sys.modules.get("torch")
        if torch is not None:  # as when it is scored
            torch.manual_seed(0)
        try:
            for batch in iterate(self.data):
                leaves, template = flatten(batch)
                digest.update(repr(template).encode())
                for leaf in leaves:
                    array = np.asarray(leaf.detach().cpu() if hasattr(leaf, "detach") else leaf)
                    digest.update(f"{array.dtype} {array.shape}".encode())
                    digest.update(np.ascontiguousarray(array).tobytes())
        except (UsageError, TypeError):
            return uuid4().hex
        return digest.hexdigest()


def _has_length(data: Any) -> bool:
    try:
        len(data)
    except TypeError:
        return not is_loader(data)
    return True


def _source_of(metric: Any) -> bytes:
    """Return the source file of a metric; nothing for the main script, whose functions are packed as code."""
    function = getattr(metric, "func", metric)  # of a functools.partial
    known = function if hasattr(function, "__qualname__") else type(function)
    if getattr(known, "__module__", None) in ("__main__", "__mp_main__"):
        return b""
    try:
        return Path(inspect.getsourcefile(known) or "").read_bytes()
    except (TypeError, OSError):
        return b""  # built in or compiled


def find_kind(metric: Any) -> Kind:
    """Return the form of a metric.

    "stateful" has `update` and `compute`, like torchmetrics. A function of one required argument takes the model, and
    the data if the second is called like a loader. One of two takes the model and the data if the first is called
    "model" or the second like a loader, otherwise the output and the target of one batch.

    Raises:
        UsageError: it is none of these.

    Example:
        >>> find_kind(lambda pred, target: 0), find_kind(lambda model: 0), find_kind(lambda model, loader: 0)
        ('pairs', 'model', 'model and data')
    """
    if collects(metric):
        return "stateful"
    if not callable(metric):
        raise UsageError(
            f"metric={metric!r} is not a metric. Give f(pred, target), f(model, loader), f(model), or an object with "
            "update(pred, target) and compute()."
        )
    parameters = parameters_of(metric)
    if parameters is None:
        return "pairs"  # a built-in function has no signature
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = required_inputs(parameters)
    if len(required) > 2:
        raise UsageError(
            f"metric={metric!r} needs {len(required)} arguments. Give f(pred, target), f(model, loader) or f(model)."
        )
    second = positional[1] if len(positional) > 1 else ""
    if second in _DATA_NAMES or (len(required) > 1 and required[0] == "model"):
        return "model and data"
    if len(required) == 1 and second not in _TARGET_NAMES:
        return "model"
    return "pairs"


def _to_score(value: Any) -> Score:
    array = to_array(value)
    if array.ndim == 1 and array.size > 1:
        return Score(value=float(array.mean()), count=len(array), arrays={"samples": array})
    if array.size != 1:
        raise UsageError(
            f"The metric returned an array of the shape {array.shape!r}. Return one number, or one per sample."
        )
    return Score(value=float(array.reshape(())))
