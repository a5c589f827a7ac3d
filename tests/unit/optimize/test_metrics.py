"""Metrics in all the forms that people write them."""

import functools
import importlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.planted import DoublingGraph
from torch.utils.data import DataLoader

from boxwright.core.batches import BatchForm, is_loader, iterate
from boxwright.core.errors import UsageError
from boxwright.optimize.metrics import MetricScorer, find_kind
from boxwright.optimize.model import OptimizedModel


class Doubling:
    def forward(self, x: Any) -> Any:
        return x * 2


class TwoInputs:
    def forward(self, a: Any, b: Any, *, mask: Any = None) -> Any: ...


BATCHES = [(torch.ones(2, 3), torch.tensor([2.0, 0.0])), (torch.ones(1, 3), torch.tensor([2.0]))]


class Loader:
    def __iter__(self) -> Iterator[Any]:
        return iter(BATCHES)

    def __len__(self) -> int:
        return len(BATCHES)


def _each(pred: Any, target: Any) -> Any:
    return (pred[:, 0] == target).float()


def _mean(pred: Any, target: Any) -> Any:
    return (pred[:, 0] == target).float().mean()


class Right:
    """As torchmetrics' are built."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.right = self.all = 0

    def update(self, pred: Any, target: Any) -> None:
        self.right += int((pred[:, 0] == target).sum())
        self.all += len(target)

    def compute(self) -> Any:
        return torch.tensor(self.right / self.all)


class Distances:
    """As the Estimator's `Metric` is built: nothing resets it."""

    def __init__(self) -> None:
        self.all: list[float] = []

    def update(self, pred: Any, target: Any) -> None:
        self.all += (pred[:, 0] - target).tolist()

    def compute(self) -> float:
        return sum(self.all) / len(self.all)


def _scorer(metric: Any, data: Any = None) -> MetricScorer:
    return MetricScorer(metric=metric, data=Loader() if data is None else data, form=BatchForm(Doubling()))


def _of_model(model: Any) -> float:
    assert isinstance(model.eval(), OptimizedModel)
    return float(model(torch.ones(1, 3)).sum())


def _of_model_and_loader(model: Any, loader: Any) -> list[float]:
    return [float(hit) for x, y in loader for hit in _each(model(x), y)]


@pytest.mark.parametrize(
    ("metric", "kind", "value", "samples"),
    [
        (_each, "pairs", 2 / 3, 3),
        (_mean, "pairs", 2 / 3, 0),
        (Right(), "stateful", 2 / 3, 0),
        (Distances(), "stateful", 2 / 3, 0),
        (_of_model, "model", 6.0, 0),
        (_of_model_and_loader, "model and data", 2 / 3, 3),
    ],
)
def test_every_form_of_a_metric_gives_its_score(metric: Any, kind: str, value: float, samples: int) -> None:
    scorer = _scorer(metric)
    assert find_kind(metric) == kind
    for _ in range(2):  # nothing is carried over
        score = scorer.score(DoublingGraph())
        assert score.value == pytest.approx(value)
        assert score.count == samples


@pytest.mark.parametrize(
    ("metric", "kind"),
    [
        (lambda model, k=5: 0, "model"),
        (lambda net, k=5: 0, "model"),
        (lambda model, *, k=5: 0, "model"),
        (functools.partial(lambda model, k: 0, k=5), "model"),
        (lambda model, loader=None: 0, "model and data"),
        (lambda net, loader, k=5: 0, "model and data"),
        (lambda model, batch, k=5: 0, "model and data"),
        (lambda pred, target, k=5: 0, "pairs"),
        (lambda pred, target=None: 0, "pairs"),
    ],
)
def test_an_option_of_a_metric_is_neither_data_nor_target(metric: Any, kind: str) -> None:
    assert find_kind(metric) == kind


class NamedLoader:
    def __iter__(self) -> Iterator[Any]:
        return ({"x": x, "label": y} for x, y in BATCHES)


def _of_model_and_popped_labels(model: Any, loader: Any) -> list[float]:
    hits = []
    for batch in loader:
        labels = batch.pop("label")
        hits += _each(model(*batch.values()), labels).tolist()
    return hits


def test_a_metric_of_model_and_loader_may_take_the_labels_out_of_a_batch() -> None:
    assert _scorer(_of_model_and_popped_labels, NamedLoader()).score(DoublingGraph()).value == pytest.approx(2 / 3)


def test_batches_of_one_are_samples() -> None:
    data = [(x[i : i + 1], y[i : i + 1]) for x, y in BATCHES for i in range(len(x))]

    class Ones:
        def __iter__(self) -> Iterator[Any]:
            return iter(data)

    scorer = _scorer(_mean, Ones())
    assert scorer.score(DoublingGraph()).count == 3


def test_draws_are_means_of_their_samples() -> None:
    scorer = _scorer(_each)
    score = scorer.score(DoublingGraph())
    assert scorer.resample(score, np.array([[1, 1, 1], [0, 3, 0], [2, 1, 0]])) == pytest.approx([2 / 3, 0, 2 / 3])


def test_the_fingerprint_changes_with_metric_and_data() -> None:
    prints = {
        _scorer(_each).fingerprint(),
        _scorer(_mean).fingerprint(),
        _scorer(_each, (torch.ones(1, 3), torch.ones(1))).fingerprint(),
    }
    assert len(prints) == 3
    assert _scorer(_each).fingerprint() in prints


def test_the_fingerprint_changes_with_every_input_and_target() -> None:
    def print_of(*batches: Any) -> str:
        return _scorer(_each, DataLoader(list(batches), batch_size=None)).fingerprint()  # type: ignore[arg-type]

    first, (inputs, target) = BATCHES
    usual = print_of(first, (inputs, target))
    assert print_of(first, (inputs, target)) == usual
    assert (
        len({usual, print_of(first, (inputs + 1, target)), print_of(first, (inputs, target + 1)), print_of(first)}) == 4
    )


@pytest.mark.parametrize("wrap", [lambda f: f, functools.partial])
def test_the_fingerprint_changes_when_the_metrics_file_is_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrap: Any
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "edited_metric.py"
    prints = []
    for text in ("WORTH = 1", "WORTH = 2", "WORTH = 1"):
        file.write_text(f"{text}\ndef found(pred, target):\n    return WORTH\n")
        sys.modules.pop("edited_metric", None)
        metric = wrap(importlib.import_module("edited_metric").found)
        prints.append(_scorer(metric).fingerprint())
    sys.modules.pop("edited_metric")
    assert prints[0] == prints[2] != prints[1]


class Endless:
    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat(BATCHES[0])


@pytest.mark.parametrize(
    ("metric", "data"),
    [
        (_of_model, None),
        (_of_model_and_loader, "a/path"),
        (_of_model_and_loader, Endless()),
        (_each, (torch.ones(1, 3), object())),
    ],
)
def test_what_a_metric_reads_by_itself_has_another_fingerprint_each_time(metric: Any, data: Any) -> None:
    scorer = MetricScorer(metric=metric, data=data, form=BatchForm(Doubling()))
    assert scorer.fingerprint() != scorer.fingerprint()


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (3, "is not a metric"),
        (lambda a, b, c: 0, "needs 3 arguments"),
        (lambda pred, target: pred, "one number per batch"),
    ],
)
def test_a_metric_that_makes_no_sense_is_refused(metric: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _scorer(metric).score(DoublingGraph())


def test_a_metric_without_data_or_target_is_refused() -> None:
    with pytest.raises(UsageError, match="Give validation_data"):
        MetricScorer(metric=_each, data=None, form=BatchForm(Doubling()))
    with pytest.raises(UsageError, match="hold only inputs"):
        _scorer(_each, torch.ones(2, 3)).score(DoublingGraph())
    for metric in (_each, Right()):
        with pytest.raises(UsageError, match="validation_data gave no batch"):
            _scorer(metric, DataLoader([])).score(DoublingGraph())  # type: ignore[arg-type]


def test_a_function_is_no_model() -> None:
    with pytest.raises(UsageError, match=r"has no forward.*Give a torch\.nn\.Module"):
        BatchForm(_each)


@pytest.mark.parametrize(
    ("model", "batch", "call", "target"),
    [
        (Doubling(), ["x", "y"], (("x",), {}), "y"),
        (Doubling(), ["x"], (("x",), {}), None),
        (Doubling(), ["x", "y", "z"], (("x",), {}), ("y", "z")),
        (Doubling(), {"x": 1, "label": 2}, ((), {"x": 1}), 2),
        (TwoInputs(), ["a", "b"], (("a", "b"), {}), None),
        (TwoInputs(), ["a", "b", "y"], (("a", "b"), {}), "y"),
        (TwoInputs(), [("a", "b"), "y"], (("a", "b"), {}), "y"),
        (TwoInputs(), ({"a": 1, "b": 2}, "y"), ((), {"a": 1, "b": 2}), "y"),
        (TwoInputs(), ((("a", "b"), "y"),), (("a", "b"), {}), "y"),
        (TwoInputs(), {"a": 1, "b": 2, "mask": 3}, ((), {"a": 1, "b": 2, "mask": 3}), None),
    ],
)
def test_a_batch_is_split_by_what_the_model_takes(model: Any, batch: Any, call: Any, target: Any) -> None:
    assert BatchForm(model).split(batch) == (call, target)


def test_a_batch_with_too_few_inputs_is_refused() -> None:
    with pytest.raises(UsageError, match="needs 2 inputs"):
        BatchForm(TwoInputs()).split(["a"])


def test_a_tensor_or_a_tuple_is_one_batch_and_a_loader_is_many() -> None:
    assert [is_loader(d) for d in (torch.ones(1), (1, 2), {"a": 1}, Loader())] == [False, False, False, True]
    assert len(list(iterate(Loader()))) == 2
    assert [len(batch) for batch in iterate(torch.ones(2, 3))] == [2]


def test_a_converted_model_answers_in_the_kind_it_was_asked() -> None:
    model = OptimizedModel(DoublingGraph())
    assert isinstance(model(torch.ones(1, 3)), torch.Tensor)
    assert isinstance(model(np.ones((1, 3), np.float32)), np.ndarray)
    with pytest.raises(UsageError, match="can't be trained"):
        model.train()
    assert model.train(False) is model


def test_many_calls_are_answered_in_their_order() -> None:
    model = OptimizedModel(DoublingGraph())
    calls = [torch.full((1, 3), 1.0), (np.full((1, 3), 2, np.float32),), [torch.full((2, 3), 3.0)]]
    found = list(model.map(calls))
    assert [float(f[0, 0]) for f in found] == [2.0, 4.0, 6.0]
    assert [isinstance(f, torch.Tensor) for f in found] == [True, False, True]
