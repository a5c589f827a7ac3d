"""`trace`, `quantize` and what they return: any call, any size, a module in the eyes of others."""

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from boxwright.core.errors import ConversionError, UsageError
from boxwright.core.structure import Output
from boxwright.optimize.candidates import METHODS
from boxwright.optimize.config import SearchConfig
from boxwright.optimize.optimizer import InferenceOptimizer, fitting_methods

pytestmark = pytest.mark.usefixtures("one_torch_thread")
ROWS = torch.rand(2, 4)


@pytest.mark.parametrize("function", ["quantize", "trace", "optimize"])
def test_a_loaded_model_is_not_converted_again_without_its_original(function: str, tmp_path: Path) -> None:
    with InferenceOptimizer() as optimizer:
        InferenceOptimizer.save(InferenceOptimizer.trace(nn.Linear(4, 2), ROWS, "eager"), tmp_path / "model")
        model: Any = InferenceOptimizer.load(tmp_path / "model")
        with pytest.raises(UsageError, match=rf"converted already, and {function}\(\) .* Give the original"):
            getattr(optimizer, function)(model, ROWS)
        with pytest.raises(UsageError, match="not 'function'"):
            getattr(optimizer, function)(lambda x: x, ROWS)


class Called(nn.Module):
    """Takes an image, a mask that may be left out and a constant; gives an output with attributes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.inner = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)
        self.config = {"classes": 2}

    def forward(self, image: Tensor, mask: Tensor | None = None, *, scale: float = 1.0, labels: Any = None) -> Any:
        features = torch.relu(self.conv(image)).mean((2, 3))
        features = features if mask is None else features * mask
        return Output(logits=self.head(torch.relu(self.inner(features))) * scale)

    def double(self) -> int:  # type: ignore[override] # a method of the user's own
        return 2 * self.config["classes"]


IMAGES, OTHERS = torch.rand(2, 3, 16, 16), torch.rand(3, 3, 24, 20)


def same(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second.detach(), atol=1e-4)


@pytest.mark.parametrize("accelerator", ["eager", "jit", "onnxruntime", "openvino"])
def test_a_model_takes_other_sizes_along_the_axes_that_are_named(accelerator: str) -> None:
    model = Called()
    fast = InferenceOptimizer.trace(model, IMAGES, accelerator, dynamic=["batch", "height", "width"])
    assert fast.signature.inputs[0].shape == (None, 3, None, None)
    for images in (IMAGES, OTHERS):
        assert same(fast(images).logits, model(images).logits)
    fixed = InferenceOptimizer.trace(model, IMAGES, accelerator, dynamic=False)
    with pytest.raises(UsageError, match=r"takes the shape \(2, 3, 16, 16\)"):
        fixed(OTHERS)


def test_what_varies_in_the_data_may_vary_later_and_the_data_gives_the_sample() -> None:
    model, data = Called(), Batches([{"image": IMAGES, "labels": torch.ones(2)}, {"image": OTHERS, "labels": None}])
    for fast in (
        InferenceOptimizer.trace(model, None, "eager", training_data=data),
        InferenceOptimizer.trace(model, data, "eager"),
    ):
        assert fast.signature.inputs[0].shape == (None, 3, None, None)
    fast = InferenceOptimizer.quantize(model, data, "int8")
    assert fast.signature.inputs[0].shape == (None, 3, None, None)
    assert fast(OTHERS).logits.shape == (3, 2)
    with pytest.raises(UsageError, match="no other size along sequence"):
        InferenceOptimizer.trace(nn.Linear(4, 2), ROWS, "eager", dynamic="sequence")


def test_inputs_go_by_name_and_by_position_and_constants_may_be_left_out() -> None:
    model, mask = Called(), torch.rand(2, 8)
    fast = InferenceOptimizer.trace(model, {"mask": mask, "image": IMAGES, "scale": 3.0}, "eager")
    expected = model(IMAGES, mask, scale=3.0).logits
    for output in (
        fast(IMAGES, mask),
        fast(IMAGES, mask=mask),
        fast(image=IMAGES, mask=mask, scale=3.0),
        fast(mask=mask, image=IMAGES, labels=None),
    ):
        assert same(output.logits, expected)
        assert same(output[0], expected)
        assert same(output["logits"], expected)
    with pytest.raises(UsageError, match="Input 'mask' is missing"):
        fast(IMAGES)
    with pytest.raises(UsageError, match=r"the constant 3\.0 of the converted model, not 1\.0"):
        fast(IMAGES, mask, scale=1.0)
    with pytest.raises(UsageError, match="'labels' was not part of the example"):
        fast(IMAGES, mask, labels=mask)


def test_a_converted_model_is_a_module_with_the_attributes_of_the_original(tmp_path: Path) -> None:
    model = Called()
    fast: Any = InferenceOptimizer.trace(model, IMAGES, "eager")
    InferenceOptimizer.save(fast, tmp_path / "model")
    for converted in (fast, InferenceOptimizer.load(tmp_path / "model", model=model)):
        assert isinstance(converted, Called)
        assert converted.config is model.config
        assert converted.double() == 4
        assert list(converted.parameters()) == list(model.parameters())
        assert converted.eval().to("cpu") is converted
        assert not converted.training
        assert same(converted(IMAGES).logits, model(IMAGES).logits)
        with pytest.raises(UsageError, match="can't be moved"):
            converted.half()
        with pytest.raises(UsageError, match="can't be pickled"):
            copy.deepcopy(converted)
    assert isinstance(InferenceOptimizer.load(tmp_path / "model"), nn.Module)
    assert model.training


def test_a_converted_model_is_quantised_from_its_original() -> None:
    model = Called()
    traced = InferenceOptimizer.trace(model, IMAGES, "eager")
    assert InferenceOptimizer.quantize(traced, IMAGES, "int8").original is model
    assert InferenceOptimizer.trace(traced, accelerator="jit").original is model


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else -x * x


def test_a_frozen_branch_is_told_and_outputs_too_far_away_are_an_error(caplog: pytest.LogCaptureFixture) -> None:
    InferenceOptimizer.trace(Branching(), torch.ones(2, 4), "jit")
    assert "frozen as the example took it" in caplog.text
    with pytest.raises(
        ConversionError, match=r"away from the original's; precision 32 explains 0\.001\. Pass a max_dist"
    ):
        InferenceOptimizer.trace(Random(), ROWS, "eager")
    assert InferenceOptimizer.trace(Random(), ROWS, "eager", max_distance=1e6)(ROWS).shape == (2, 4)


class Random(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.rand_like(x)


def test_an_int8_model_within_a_budget_in_one_call() -> None:
    model, targets = Called(), torch.zeros(2, dtype=torch.int64)
    data = Batches([(IMAGES, targets)])
    fast = InferenceOptimizer.quantize(
        model, data, "int8", metric=right, accuracy_criterion={"relative": 0.5, "higher_is_better": True}
    )
    assert same(fast(IMAGES).logits, model(IMAGES).logits) or fast(IMAGES).logits.shape == (2, 2)
    with pytest.raises(UsageError, match="go together"):
        InferenceOptimizer.quantize(model, data, "int8", accuracy_criterion=0.1)
    with pytest.raises(UsageError, match="is not understood"):
        InferenceOptimizer.quantize(model, data, "int8", metric=right, accuracy_criterion={"much": 1})


def right(outputs: Any, targets: Tensor) -> Tensor:
    return (outputs.logits.argmax(1) >= targets).float()


def test_options_of_runtimes_and_of_outputs() -> None:
    model = Called()
    fast = InferenceOptimizer.trace(model, IMAGES, "openvino", openvino_config={"INFERENCE_NUM_THREADS": 1})
    assert [same(o.logits, model(IMAGES).logits) for o in fast.async_predict([IMAGES] * 3, num_requests=2)] == [
        True
    ] * 3
    fast.close()
    arrays = InferenceOptimizer.trace(model, IMAGES, "eager", output_tensors=False)(IMAGES).logits
    assert isinstance(arrays, np.ndarray)
    with pytest.raises(UsageError, match="openvino_config does not apply to runtime 'eager'"):
        InferenceOptimizer.trace(model, IMAGES, "eager", openvino_config={})


def test_session_options_are_those_of_onnx_runtime_itself(tmp_path: Path) -> None:
    from onnxruntime import SessionOptions

    options = SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "seen.onnx")  # written by the session that has the options
    layer = nn.Linear(4, 2)
    fast = InferenceOptimizer.trace(layer, ROWS, "onnxruntime", session_options=options)
    assert (tmp_path / "seen.onnx").is_file()
    assert same(fast(ROWS), layer(ROWS))
    InferenceOptimizer.save(fast, tmp_path / "model")
    plain = InferenceOptimizer.load(tmp_path / "model", session_options=SessionOptions())
    assert same(plain(ROWS), layer(ROWS))
    with pytest.raises(UsageError, match="session_options hold threads themselves"):
        InferenceOptimizer.load(tmp_path / "model", session_options=options, thread_num=1)


def test_an_option_that_does_not_exist_is_refused_with_the_names_of_those_that_do() -> None:
    model: Any = nn.Linear(4, 2)
    for refused in (
        lambda: InferenceOptimizer.trace(model, ROWS, "jit", opset_version=17),
        lambda: InferenceOptimizer.quantize(model, ROWS, "int8", opset_version=17),
        lambda: InferenceOptimizer.load("folder", opset_version=17),
    ):
        with pytest.raises(UsageError, match=r"Unknown option 'opset_version'.*session_options"):
            refused()


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.layer(torch.relu(a) + b)


def test_batches_of_one_nested_tuple_are_inputs_and_target() -> None:
    model, batch = Two(), (((ROWS, ROWS), torch.zeros(2, 2)),)
    for fast in (
        InferenceOptimizer.trace(model, Batches([batch]), "eager"),
        InferenceOptimizer.trace(model, None, "eager", training_data=batch),
        InferenceOptimizer.quantize(model, Batches([batch]), "int8"),
    ):
        assert len(fast.signature.inputs) == 2
        torch.testing.assert_close(fast(ROWS, b=ROWS), model(ROWS, ROWS).detach(), rtol=0, atol=0.1)


class Counting(nn.Module):
    """The code has as many steps as the example has rows."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([row * (i + 1) for i, row in enumerate(x)])


@pytest.mark.parametrize("accelerator", ["eager", "jit", "onnxruntime", "openvino"])
def test_a_batch_that_the_code_fixes_is_fixed_in_the_signature_of_every_runtime(accelerator: str) -> None:
    model, rows = Counting(), torch.rand(3, 4)
    fast = InferenceOptimizer.trace(model, rows, accelerator)
    assert fast.signature.inputs[0].shape == (3, 4)
    assert same(fast(rows), model(rows))
    with pytest.raises(UsageError, match=r"takes the shape \(3, 4\)"):
        fast(rows[:2])


def test_a_model_without_image_layers_is_not_tried_channels_last() -> None:
    text, image = (fitting_methods(SearchConfig(), model).methods for model in (nn.Linear(4, 2), Called()))
    left_out = {name for name in image if (choice := METHODS[name].choice) and choice.channels_last}
    assert left_out
    assert set(text) == set(image) - left_out
    named = SearchConfig(includes=["bf16_channels_last"])
    assert fitting_methods(named, nn.Linear(4, 2)).methods == named.methods


def test_a_plain_module_runs_in_several_processes_and_takes_a_list_of_calls() -> None:
    model = Called()
    with InferenceOptimizer.to_multi_instance(model, 1, input_sample=IMAGES) as several:
        assert [same(o.logits, model(IMAGES).logits) for o in several([IMAGES, IMAGES])] == [True, True]
        assert same(several(IMAGES).logits, model(IMAGES).logits)


def test_compressed_weights_take_half_the_space(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 2))
    fast = InferenceOptimizer.trace(model, ROWS, "eager")
    InferenceOptimizer.save(fast, tmp_path / "whole")
    InferenceOptimizer.save(fast, tmp_path / "half", compression="bf16")
    sizes = [(tmp_path / name / "weights.safetensors").stat().st_size for name in ("half", "whole")]
    assert sizes[0] < 0.6 * sizes[1]
    again = InferenceOptimizer.load(tmp_path / "half")
    torch.testing.assert_close(again(ROWS), fast(ROWS), rtol=0, atol=0.05)
    assert not torch.equal(again(ROWS), fast(ROWS))
    with pytest.raises(UsageError, match="compression='bf16' does not apply"):
        InferenceOptimizer.save(InferenceOptimizer.trace(model, ROWS, "jit"), tmp_path / "x", compression="bf16")


def test_a_log_that_an_error_names_is_kept() -> None:
    def broken(model: Any) -> float:
        raise RuntimeError("no such label")

    with InferenceOptimizer() as optimizer, pytest.raises(UsageError, match="no such label") as caught:
        optimizer.optimize(nn.Linear(4, 2), ROWS, metric=broken, includes=["fp32"], quiet=True)
    log = Path(str(caught.value).rpartition("See '")[2].rstrip(".'"))
    assert "no such label" in log.read_text()
    shutil.rmtree(optimizer.folder)


class Batches:
    """A loader."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)
