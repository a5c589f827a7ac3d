"""Models of any kind go through the optimiser: a classifier, two inputs and two outputs, a transformer's block."""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from support.clusters import further
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from boxwright import InferenceOptimizer
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import BudgetError, ConversionError, UsageError
from boxwright.optimize.model import OptimizedModel
from boxwright.runtimes.artifact import read_artifact

# What the module's tests share is made once.
pytestmark = [pytest.mark.xdist_group("optimize"), pytest.mark.usefixtures("one_torch_thread")]
QUICK: dict[str, Any] = {"thread_num": 1, "latency_sample_num": 6, "quiet": True}


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        self.short = nn.Conv2d(before, after, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(x)) + self.short(x))


def small_resnet() -> nn.Module:
    """ResNet-18's build, with fewer channels."""
    torch.manual_seed(0)
    parts = [Block(8 if i == 0 else 2 ** (2 + i), 2 ** (3 + i), 1 if i == 0 else 2) for i in range(4)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5)]
    return nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *parts, *head)


class TwoInTwoOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 8), nn.Linear(3, 8)

    def forward(self, a: Tensor, *, b: Tensor) -> dict[str, Any]:
        joined = torch.tanh(self.left(a) + self.right(b))
        return {"sum": joined.sum(dim=1), "parts": [joined, joined * 2]}


def right(pred: Tensor, target: Tensor) -> Tensor:
    return (pred.argmax(dim=1) == target).float()


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory) -> tuple[InferenceOptimizer, nn.Module, Any]:
    """A search with a classifier; its folder stays for the next search."""
    model, images = small_resnet(), torch.rand(20, 3, 32, 32)
    with torch.no_grad():
        model.train()(images)  # gives its normalisations something to do
        labels = model.eval()(images).argmax(dim=1)
    loader = DataLoader(TensorDataset(images, labels), batch_size=4)
    optimizer = InferenceOptimizer(tmp_path_factory.mktemp("classifier"))
    model.train()
    optimizer.optimize(
        model, loader, loader, metric=right, includes=["fp32", "onnxruntime_fp32"], max_drop=0.0, **QUICK
    )
    return optimizer, model, loader


def test_every_row_has_its_numbers(classified: tuple[InferenceOptimizer, nn.Module, Any]) -> None:
    report = classified[0].report
    assert [row.method for row in report.rows] == ["original", "fp32", "onnxruntime_fp32"]
    for row in report.rows:
        assert row.status == "successful", row.note
        assert row.accuracy == 1.0
        assert row.latency_ms is not None
        assert row.p95_ms is not None
        assert 0 < row.latency_ms <= row.p95_ms
        assert row.peak_mb is not None
        assert row.peak_mb > 10
        assert row.runs == 6
    assert report.settings.batch == 4
    assert report.settings.threads == 1


def test_the_model_stays_as_it_was(classified: tuple[InferenceOptimizer, nn.Module, Any]) -> None:
    optimizer, model, _ = classified
    assert model.training
    assert optimizer.get_model("original") is model


def test_a_converted_model_is_called_like_the_original(classified: tuple[InferenceOptimizer, nn.Module, Any]) -> None:
    optimizer, model, _ = classified
    images = torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        expected = model.eval()(images)
    model.train()
    for method in ("fp32", "onnxruntime_fp32"):
        with optimizer.get_model(method) as converted:
            assert torch.allclose(converted(images), expected, atol=1e-4)
            np.testing.assert_allclose(converted(images.numpy()), expected, atol=1e-4)
    with optimizer.get_model("onnxruntime_fp32", streams=2) as streaming:
        assert all(torch.allclose(found, expected, atol=1e-4) for found in streaming.map([images] * 3))
    with pytest.raises(UsageError, match="streams=2 does not apply"):
        optimizer.get_model("fp32", streams=2)
    with pytest.raises(UsageError, match="neither hint nor streams"):
        optimizer.get_model("original", hint="latency")


def test_the_best_model_is_loaded_by_its_name(classified: tuple[InferenceOptimizer, nn.Module, Any]) -> None:
    optimizer, _, _ = classified
    model, method = optimizer.get_best_model(accelerator="onnxruntime", accuracy_criterion=0.01)
    assert method == "onnxruntime_fp32"
    assert model(torch.rand(1, 3, 32, 32)).shape == (1, 5)
    with pytest.raises(BudgetError, match="No candidate was successful"):
        optimizer.get_best_model(accelerator="openvino")
    for criterion in (-0.1, float("nan")):
        with pytest.raises(UsageError, match="accuracy_criterion="):
            optimizer.get_best_model(accuracy_criterion=criterion)


def test_a_model_is_saved_and_loaded(classified: tuple[InferenceOptimizer, nn.Module, Any], tmp_path: Path) -> None:
    optimizer, _, _ = classified
    model = optimizer.get_model("onnxruntime_fp32")
    InferenceOptimizer.save(model, tmp_path / "saved")
    again = InferenceOptimizer.load(tmp_path / "saved", thread_num=1)
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(again(images), model(images))
    with pytest.raises(UsageError, match="is not an empty folder"):
        InferenceOptimizer.save(model, tmp_path / "saved")


def test_methods_that_have_no_model_say_why(classified: tuple[InferenceOptimizer, nn.Module, Any]) -> None:
    optimizer, _, _ = classified
    with pytest.raises(UsageError, match="'bf16' was not tried"):
        optimizer.get_model("bf16")
    with pytest.raises(UsageError, match="Did you mean 'bf16'"):
        optimizer.get_model("bf17")


def test_the_report_is_in_the_folder(classified: tuple[InferenceOptimizer, nn.Module, Any]) -> None:
    optimizer, _, _ = classified
    folder = optimizer.folder
    assert "<svg" in (folder / "report.html").read_text()
    assert {p.name for p in folder.iterdir()} == {"report.html", "report.json", "artifacts", "logs", "tries"}
    assert "onnxruntime_fp32" in optimizer.summary()


def test_a_second_search_goes_on_where_the_first_ended(
    classified: tuple[InferenceOptimizer, nn.Module, Any], caplog: pytest.LogCaptureFixture
) -> None:
    optimizer, model, loader = classified
    written = (optimizer.folder / "artifacts" / "onnxruntime_fp32" / "model.onnx").stat().st_mtime_ns
    caplog.set_level("INFO")
    again = InferenceOptimizer(optimizer.folder)
    report = again.optimize(model, loader, loader, metric=right, includes=["onnxruntime_fp32"], max_drop=0.0, **QUICK)
    assert "onnxruntime_fp32: known from an earlier search" in caplog.text
    assert [row.status for row in report.rows] == ["successful", "successful"]
    assert report.rows[1].accuracy == 1.0
    assert (optimizer.folder / "artifacts" / "onnxruntime_fp32" / "model.onnx").stat().st_mtime_ns == written


def test_two_inputs_and_nested_outputs_keep_their_form() -> None:
    model = TwoInTwoOut()
    sample = {"a": torch.rand(2, 4), "b": torch.rand(2, 3)}
    with InferenceOptimizer() as optimizer:
        report = optimizer.optimize(
            model, sample, includes=["onnxruntime_fp32"], output_filename=optimizer.folder / "t", **QUICK
        )
        assert [row.status for row in report.rows] == ["successful"] * 2, report.table()
        assert report.rows[1].accuracy is None
        assert "onnxruntime_fp32" in (optimizer.folder / "t").read_text()
        found = optimizer.get_model("onnxruntime_fp32")(a=sample["a"], b=sample["b"])
        folder = optimizer.folder
    expected = model(**sample)
    assert torch.allclose(found["sum"], expected["sum"], atol=1e-5)
    assert torch.allclose(found["parts"][1], expected["parts"][1], atol=1e-5)
    assert not folder.exists()


def test_a_transformer_block_goes_through() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    with InferenceOptimizer() as optimizer:
        report = optimizer.optimize(
            model, torch.rand(2, 6, 16), input_sample=torch.rand(2, 6, 16), includes=["fp32"], **QUICK
        )
        assert [row.status for row in report.rows] == ["successful"] * 2, report.table()


def test_trace_gives_one_converted_model() -> None:
    model = small_resnet().eval()
    images = torch.rand(2, 3, 32, 32)
    converted = InferenceOptimizer.trace(model, images, "onnxruntime", thread_num=1)
    with InferenceOptimizer.get_context(model), torch.no_grad():
        assert torch.allclose(converted(images), model(images), atol=1e-4)
    with pytest.raises(UsageError, match="Use quantize"):
        InferenceOptimizer.trace(model, images, "onnxruntime", precision="int8")


@pytest.mark.parametrize(
    ("accelerator", "method"), [("openvino", ""), ("onnxruntime", ""), *further(("openvino", "bf16"))]
)
def test_quantize_gives_an_int8_model_with_layers_kept_as_asked(tmp_path: Path, accelerator: str, method: str) -> None:
    model, images = small_resnet().eval(), torch.rand(8, 3, 32, 32)
    loader = DataLoader(TensorDataset(images), batch_size=1)
    folder = tmp_path / "model"
    made = InferenceOptimizer.quantize(
        model, loader, accelerator, method=method, keep_float=["4.first.0"], calibration_samples=8, folder=folder
    )
    recipe = read_artifact(folder).recipe
    assert "4.second.0" in recipe["quantized"]
    assert "4.first.0" not in recipe["quantized"]
    with torch.no_grad():
        expected = model(images)
    found = torch.as_tensor(made(images))
    assert found.shape == expected.shape
    assert 0 < (found - expected).abs().max() < 0.1 * expected.abs().max()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, OptimizedModel]:
    """A small model, and what ONNX Runtime makes of it."""
    model, folder = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval(), tmp_path_factory.mktemp("traced")
    made = InferenceOptimizer.trace(model, torch.rand(2, 3), "onnxruntime", hint="latency", folder=folder)
    return model, made


def test_a_hint_or_streams_change_how_a_model_runs_and_not_what_it_gives(
    traced: tuple[nn.Module, OptimizedModel],
) -> None:
    (model, made), rows = traced, torch.rand(7, 3)
    folder = made.folder
    assert folder is not None
    with torch.no_grad():
        expected = model(rows)
    beside = InferenceOptimizer.load(folder, hint="throughput")
    two = InferenceOptimizer.load(folder, thread_num=1, streams=2)
    assert two.graph.streams == 2  # type: ignore[attr-defined]
    for one in (made, beside, two):
        answers = list(one.map([rows[i : i + 2] for i in range(0, 7, 2)]))  # the last has one row
        torch.testing.assert_close(torch.cat([torch.as_tensor(a) for a in answers]), expected)
    beside.close()
    two.close()
    assert made.arrangement is not None
    assert made.arrangement.explain().startswith("For latency: 1 instance")
    assert beside.arrangement is not None
    assert beside.arrangement.side_by_side == read_cpu().usable_cores
    assert two.arrangement is None


def test_bfloat16_inputs_are_refused_with_what_to_do(traced: tuple[nn.Module, OptimizedModel], tmp_path: Path) -> None:
    model, made = traced
    rows = torch.rand(2, 3).bfloat16()
    half = copy.deepcopy(model).bfloat16()
    calls: list[Callable[[], Any]] = [
        lambda: InferenceOptimizer(tmp_path).optimize(half, rows, includes=["fp32"], **QUICK),
        lambda: InferenceOptimizer.trace(half, rows),
        lambda: InferenceOptimizer.quantize(half, rows),
        lambda: made(rows),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=r"bfloat16.*float32"):
            call()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"hint": "latency", "thread_num": 2}, "hint='latency' chooses thread_num itself"),
        ({"hint": "throughput", "streams": 2}, "hint='throughput' chooses streams itself"),
        ({"hint": "fast"}, "Unknown hint 'fast'"),
        ({"streams": 0}, "streams=0 is not possible"),
    ],
)
def test_contradictory_ways_to_run_a_model_are_refused_before_it_is_converted(
    tmp_path: Path, words: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        InferenceOptimizer.load(tmp_path, **words)
    with pytest.raises(UsageError, match=message):
        InferenceOptimizer.trace(nn.Linear(3, 2), torch.rand(2, 3), folder=tmp_path / "model", **words)
    assert not (tmp_path / "model").exists()


def test_several_processes_answer_in_order_and_end(traced: tuple[nn.Module, OptimizedModel], tmp_path: Path) -> None:
    model, rows = traced[0], torch.rand(7, 3)
    before = psutil.Process().children(recursive=True)  # other tests may have left a compiler's helpers
    cpu = min(os.sched_getaffinity(0))
    # The traced model is held by nobody else, and its folder is a temporary one.
    several = InferenceOptimizer.to_multi_instance(
        InferenceOptimizer.trace(model, rows[:2], "onnxruntime"), 2, cores=[[cpu], [cpu]]
    )
    try:
        InferenceOptimizer.save(several, tmp_path / "saved")
        assert (tmp_path / "saved" / "model.onnx").is_file()
        answers = list(several.map([rows[i : i + 2] for i in range(0, 7, 2)]))  # the last has one row
        with torch.no_grad():
            torch.testing.assert_close(torch.cat([torch.as_tensor(a) for a in answers]), model(rows))
        with pytest.raises(UsageError):
            several(torch.rand(2, 5))
    finally:
        several.close()
    assert psutil.Process().children(recursive=True) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"max_drop": 0.1}, "needs a metric"),
        ({"thread_num": 10_000}, "is not possible"),
        ({"validation_data": torch.rand(1, 4)}, "no metric to use it with"),
        ({"training_data": None}, "no example of the model's inputs"),
        ({"includes": ["fp33"]}, "Did you mean 'fp32'"),
        ({"training_data": DataLoader([])}, "The data gave no batch"),
        (
            {"output_filename": "no/such/folder/table.txt"},
            "'no/such/folder/table.txt' can't be written",
        ),
        ({"direction": "up"}, "direction 'up'"),
        ({"calibration_samples": 0}, "calibration_samples=0 must be at least 1"),
        ({"memory_mb": 0}, "memory_mb=0 must be"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused_at_once(words: dict[str, Any], message: str) -> None:
    with InferenceOptimizer() as optimizer:
        wish = {"training_data": torch.rand(2, 4), "quiet": True} | words
        with pytest.raises(UsageError, match=message):
            optimizer.optimize(nn.Linear(4, 2), **wish)
        with pytest.raises(UsageError, match="Nothing has been tried yet"):
            optimizer.summary()


def test_a_model_that_fails_by_itself_is_an_error() -> None:
    with InferenceOptimizer() as optimizer, pytest.raises(ConversionError, match="The model fails on inputs"):
        optimizer.optimize(nn.Linear(4, 2), torch.rand(2, 5), quiet=True)
