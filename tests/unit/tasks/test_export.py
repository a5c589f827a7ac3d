"""What can be told without a conversion; tests/integration/test_cli_export.py converts."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support.networks import lively_nano
from support.scenes import scene
from support.toy import save_toy_onnx, toy_spec

from boxwright.core.catalogue import CATALOGUE, Entry
from boxwright.core.errors import CheckpointError, ConversionError, MissingDependencyError, UsageError
from boxwright.core.spec import Spec
from boxwright.core.types import Precision
from boxwright.detector.weights import save_weights
from boxwright.runtimes.onnx_nms import suppress_file
from boxwright.tasks.export import ExportConfig, Suppression, compare_suppression, export, tried_sizes
from boxwright.tasks.images import ImageInputs
from boxwright.tasks.models import open_model
from boxwright.tasks.predict.predictor import Predictor, Thresholds

pytestmark = pytest.mark.usefixtures("one_torch_thread")
SPEC = Spec(model="yolox_nano", names=("a", "b", "c"), size_hw=(64, 64))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "mine.safetensors"
    save_weights(path, lively_nano(), SPEC)
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "onix"}, "Unknown format 'onix'. Did you mean 'onnx'"),
        ({"format": "openvino", "suppression": Suppression()}, "--nms applies only to format 'onnx', not to 'openv"),
        ({"format": "torchscript", "dynamic": True}, "--dynamic applies only to format 'onnx'"),
        ({"batch": 0}, "batch=0 must be at least 1"),
        ({"calibration": Path("x")}, "Calibration images are for precision 'int8'"),
        ({"mode": "integer"}, "mode='integer' applies only to format 'onnx'"),
        ({"precision": Precision.BF16}, "'bf16'. Use 32 or int8"),
        ({"format": "tensorrt", "precision": Precision.INT8}, "precision 'int8'. Use 32 or 16"),
        ({"precision": Precision.INT8}, "Give them with --calibration"),
        ({"precision": Precision.INT8, "mode": "static"}, "Unknown mode 'static'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ExportConfig(**options)


@pytest.mark.parametrize(("name", "value"), [("conf", 1.5), ("nms", -0.1), ("max_boxes", 0)])
def test_thresholds_that_make_no_sense_are_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{name}={value!r} must"):
        Suppression(**{name: value})  # type: ignore[arg-type]


def test_what_is_there_is_never_written_over(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "taken.onnx").write_text("mine")
    with pytest.raises(UsageError, match=r"taken\.onnx' exists already"):
        export(weights, tmp_path / "taken.onnx")
    assert (tmp_path / "taken.onnx").read_text() == "mine"
    with pytest.raises(UsageError, match=r"must end in \.onnx"):
        export(weights, tmp_path / "other.bin")


def test_only_weights_are_exported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"toy\.onnx' is converted already"):
        export(save_toy_onnx(tmp_path / "toy.onnx"), tmp_path / "b.onnx")
    with pytest.raises(CheckpointError, match="There is no model file"):
        export(tmp_path / "missing.pth", tmp_path / "b.onnx")


@pytest.mark.parametrize(
    ("planted", "message"),
    [("write_another", r"away from the original for a batch of \d"), ("break_down", "planted")],
)
def test_a_file_that_is_wrong_or_half_is_never_left_behind(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str, message: str
) -> None:
    monkeypatch.setitem(CATALOGUE["exporter"], "onnx", Entry(target=f"support.planted_exports:{planted}"))
    with pytest.raises(ConversionError, match=message):
        export(weights, tmp_path / "new" / "b.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_tensorrt_engine_needs_its_provider(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE["exporter"], "onnx", Entry(target="support.planted_exports:write_another"))
    with pytest.raises(MissingDependencyError, match=r"'tensorrt' .*CPUExecutionProvider.* pip install onnxr"):
        export(weights, tmp_path / "mine.trt.onnx", ExportConfig(format="tensorrt"))
    with pytest.raises(UsageError, match=r"must end in \.trt\.onnx"):
        export(weights, tmp_path / "mine.onnx", ExportConfig(format="tensorrt"))
    assert list(tmp_path.iterdir()) == []
    save_toy_onnx(tmp_path / "toy.trt.onnx", spec=toy_spec())
    with pytest.raises(CheckpointError, match="TensorRT engine"):
        open_model(tmp_path / "toy.trt.onnx", trust=True)


def test_a_free_size_is_tried_at_sizes_that_differ_in_both_directions() -> None:
    sizes = [s.size_hw for s in tried_sizes(toy_spec(), dynamic=True)]
    assert sizes == [(64, 64), (96, 128), (32, 64)]
    assert [s.size_hw for s in tried_sizes(toy_spec(), dynamic=False)] == [(64, 64)]


@pytest.mark.parametrize("max_boxes", [5, 300])
def test_the_least_score_of_a_suppression_may_be_nothing(tmp_path: Path, max_boxes: int) -> None:
    spec, keep = toy_spec(output="decoded"), Suppression(conf=0, max_boxes=max_boxes)
    decoded = save_toy_onnx(tmp_path / "decoded.onnx", form="decoded", spec=spec)
    suppress_file(decoded, tmp_path / "ends.onnx", **asdict(keep))
    compare_suppression(decoded, tmp_path / "ends.onnx", [spec], keep, ImageInputs([], spec))
    with Predictor.load(tmp_path / "ends.onnx", thresholds=Thresholds(conf=0, nms=1)) as predictor:
        found = predictor(scene(("red", 1, 1), ("blue", 4, 4)))
    assert 2 <= len(found) <= max_boxes
    assert found.scores.min() > 0
    assert found.labels[:2] == ["red", "blue"]
    suppress_file(decoded, tmp_path / "fewer.onnx", **asdict(keep) | {"max_boxes": 3})
    with pytest.raises(ConversionError, match="leaves 3 boxes at"):
        compare_suppression(decoded, tmp_path / "fewer.onnx", [spec], keep, ImageInputs([], spec))
