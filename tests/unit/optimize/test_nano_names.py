"""The call forms of BigDL-Nano: its names of arguments, no example, modules saved as they are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.types import Precision
from boxwright.optimize.model import OptimizedModel
from boxwright.optimize.optimizer import InferenceOptimizer
from boxwright.runtimes.artifact import read_artifact

pytestmark = pytest.mark.usefixtures("one_torch_thread")
trace, quantize = InferenceOptimizer.trace, InferenceOptimizer.quantize


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.conv(x)).mean((2, 3)))
        return logits


MODEL, IMAGES = Small().eval(), torch.rand(8, 3, 16, 16)
LOADER = DataLoader(TensorDataset(IMAGES, torch.arange(8) % 4), batch_size=4)


def found(model: Any) -> str:
    """Return runtime, precision, mode and layout of a converted model, whose outputs must be near the original's."""
    assert isinstance(model, OptimizedModel)
    with InferenceOptimizer.get_context(model):
        torch.testing.assert_close(model(IMAGES[:3]), MODEL(IMAGES[:3]).detach(), rtol=0, atol=0.1)
    assert model.folder is not None
    choice = read_artifact(model.folder).choice
    return " ".join(
        [choice.runtime, str(choice.precision), *filter(None, [choice.mode, "last" * choice.channels_last])]
    )


def score(model: Any) -> float:
    with torch.no_grad():
        return float(-(model(IMAGES) - MODEL(IMAGES)).square().mean())


@pytest.mark.parametrize(
    ("convert", "expected"),
    [
        (lambda: trace(MODEL, accelerator=None, input_sample=IMAGES), "eager 32"),
        (lambda: trace(MODEL, use_ipex=True), "jit 32 last"),
        (lambda: trace(MODEL, channels_last=True, logging=False, inplace=True, jit_strict=False), "jit 32 last"),
        (lambda: trace(MODEL, accelerator="onnxruntime", input_sample=IMAGES, dynamic_axes=True), "onnxruntime 32"),
        (lambda: quantize(MODEL, precision="bf16"), "eager bf16"),
        (lambda: quantize(MODEL, precision="bf16", use_ipex=True, channels_last=True), "eager bf16 last"),
        (lambda: quantize(MODEL, precision="bf16", accelerator="jit", input_sample=IMAGES), "jit bf16"),
        (lambda: quantize(MODEL, precision="int8", calib_dataloader=LOADER, sample_size=2), "openvino int8"),
        (lambda: quantize(MODEL, precision="int8", accelerator=None, method="fx", calib_data=LOADER), "int8 int8"),
        (lambda: quantize(MODEL, method="ipex", calib_data=LOADER, approach="static"), "int8 int8"),
        (lambda: quantize(MODEL, "int8", "onnxruntime", calib_data=LOADER), "onnxruntime int8 qlinear"),
        (lambda: quantize(MODEL, approach="dynamic"), "onnxruntime int8 integer"),
        (lambda: quantize(MODEL, approach="dynamic", input_sample=IMAGES), "onnxruntime int8 integer"),
        (lambda: quantize(MODEL, LOADER, None, eval_func=score, accuracy_criterion={"absolute": 9.0}), "int8 int8"),
    ],
)  # fmt: skip
def test_conversions_take_bigdl_nanos_names(convert: Callable[[], Any], expected: str) -> None:
    pytest.importorskip("onnxruntime")
    assert found(convert()) == expected


def test_axes_and_session_options_have_two_names() -> None:
    from onnxruntime import SessionOptions

    model = trace(
        MODEL, IMAGES, "onnxruntime",
        dynamic_axes={"x": {0: "batch", 2: "height", 3: "width"}}, onnxruntime_session_options=SessionOptions(),
    )  # fmt: skip
    assert model.signature.inputs[0].shape == (None, 3, None, None)
    assert trace(MODEL, IMAGES, "eager", dynamic_axes=False).signature.inputs[0].shape == (8, 3, 16, 16)


@pytest.mark.parametrize(
    ("convert", "message"),
    [
        (lambda: trace(MODEL, IMAGES, jit_method="script"), "jit_method='script' is not possible. Models are traced"),
        (lambda: trace(MODEL, IMAGES, device="GPU"), "Unknown device 'GPU'"),
        (lambda: trace(MODEL, IMAGES, "openvino", use_ipex=True), "use_ipex=True does not apply to .*'openvino'"),
        (lambda: quantize(MODEL, LOADER, "openvino", use_ipex=True), "use_ipex=True does not apply to .*'openvino'"),
        (lambda: quantize(MODEL, LOADER, "onnxruntime", method="fx"), "method='fx' is for PyTorch"),
        (lambda: quantize(MODEL, LOADER, calib_dataloader=LOADER), "calib_dataloader and calib_data mean the same"),
        (lambda: quantize(MODEL, LOADER, "int8", max_trials=5), "max_trials=5 is not possible. With metric"),
        (lambda: quantize(MODEL, LOADER, "int8", approach="dynamic"), "approach='dynamic' is for .*'onnxruntime'"),
        (lambda: quantize(MODEL, LOADER, "int8", approach="qat"), "Unknown approach 'qat'"),
        (lambda: quantize(MODEL, precision="bf16", metric=score), "metric is for precision='int8', not 'bf16'"),
        (lambda: quantize(MODEL, precision="int8"), "There is no example"),
    ],
)
def test_what_a_conversion_can_not_do_is_refused(convert: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convert()


def test_without_an_example_the_first_call_converts(tmp_path: Path) -> None:
    model: Any = trace(MODEL, accelerator="jit", folder=tmp_path / "made")
    assert isinstance(model, Small)
    assert model.head is MODEL.head
    for early in (lambda: model.signature.inputs, lambda: InferenceOptimizer.save(model, tmp_path / "saved")):
        with pytest.raises(UsageError, match="its first call"):
            early()
    model.close()
    assert not (tmp_path / "made").exists()
    for shape in ((2, 3, 16, 16), (3, 3, 24, 20)):
        images = torch.rand(shape)
        torch.testing.assert_close(model(images), MODEL(images).detach(), rtol=0, atol=1e-4)
    InferenceOptimizer.save(model, tmp_path / "saved")
    again = InferenceOptimizer.load(tmp_path / "saved", MODEL)
    assert torch.equal(again(IMAGES), model(IMAGES))
    assert quantize(model, LOADER, "int8").original is MODEL


def test_a_plain_module_in_several_processes_takes_a_list_a_loader_or_one_call() -> None:
    expected = [MODEL(images).detach() for images in IMAGES.split(4)]
    with InferenceOptimizer.to_multi_instance(MODEL, 1) as several:
        for calls in (list(IMAGES.split(4)), DataLoader(TensorDataset(IMAGES), batch_size=4)):
            for one, other in zip(several(calls), expected, strict=True):
                torch.testing.assert_close(one, other)
        torch.testing.assert_close(several(IMAGES[:4]), expected[0])
        assert len(several.graph.cpus) == 1  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="cores and cpu_for_each_process mean the same"):
        InferenceOptimizer.to_multi_instance(MODEL, cores=[[0]], cpu_for_each_process=[[0]])
    with pytest.raises(UsageError, match="cores_per_process=10000 for 1 processes is not possible"):
        InferenceOptimizer.to_multi_instance(MODEL, 1, 10000)


@pytest.mark.parametrize("compression", [None, "fp32", "bf16"])
def test_the_weights_of_a_module_are_saved_and_loaded_into_another(compression: str | None, tmp_path: Path) -> None:
    model, other = Small(), Small()
    nn.init.normal_(other.head.weight)
    InferenceOptimizer.save(model, tmp_path / "model", compression)
    assert InferenceOptimizer.load(tmp_path / "model", model=other) is other
    assert other.head.weight.dtype is torch.float32
    kept = model.head.weight.bfloat16().float() if compression == "bf16" else model.head.weight
    assert torch.equal(other.head.weight, kept)
    with pytest.raises(UsageError, match="Give the module too"):
        InferenceOptimizer.load(tmp_path / "model")
    with pytest.raises(UsageError, match="Give the module only"):
        InferenceOptimizer.load(tmp_path / "model", model, thread_num=1)
    with pytest.raises(CheckpointError, match="do not fit this Linear"):
        InferenceOptimizer.load(tmp_path / "model", nn.Linear(1, 1))
    (tmp_path / "model" / "weights.pt").write_bytes(b"spoilt")
    with pytest.raises(CheckpointError, match="can't be read"):
        InferenceOptimizer.load(tmp_path / "model", model)


def test_a_late_model_says_nothing_of_sizes_that_nobody_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    trace(nn.Linear(4, 2), accelerator=None)(torch.rand(2, 4))
    assert "takes no other size" not in caplog.text
    trace(nn.Linear(4, 2), accelerator=None, dynamic=True)(torch.rand(2, 4))
    assert "takes no other size" in caplog.text


def test_a_late_model_keeps_arrays_and_precision() -> None:
    model = quantize(MODEL, precision="bf16")
    output = model(IMAGES.numpy())
    assert isinstance(output, np.ndarray)
    assert model.folder is not None
    assert read_artifact(model.folder).choice.precision is Precision.BF16


def test_a_search_takes_bigdl_nanos_names_and_none_for_pytorch() -> None:
    words = {"logging": False, "no_cache": False, "quiet": True, "thread_num": 1, "latency_sample_num": 1}
    with InferenceOptimizer() as optimizer:
        optimizer.optimize(MODEL, LOADER, accelerator=(None,), precision=("bf16",), dynamic_axes=True, **words)
        assert [row.method for row in optimizer.report.rows] == ["original", "bf16", "bf16_channels_last"]
        assert found(optimizer.get_best_model(accelerator=(None,), precision="bf16")[0]).startswith("eager bf16")
        with pytest.raises(UsageError, match="no_cache=True is not possible"):
            optimizer.optimize(MODEL, LOADER, no_cache=True)
