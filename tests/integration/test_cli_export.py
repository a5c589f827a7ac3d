"""`boxwright export`, and the other verbs on what it wrote."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from support.fixtures import Command
from support.networks import lively_nano

from boxwright.core import catalogue
from boxwright.core.spec import Spec
from boxwright.data.synthetic import generate_scenes
from boxwright.detector.weights import save_weights
from boxwright.tasks.export import ExportConfig, Exported, Suppression, export
from boxwright.tasks.models import ModelOptions, open_model
from boxwright.tasks.predict.predictor import Predictor, Thresholds

# What the module's tests share is made once.
pytestmark = [pytest.mark.xdist_group("cli_export"), pytest.mark.usefixtures("one_torch_thread")]
SPEC = Spec(model="yolox_nano", names=("a", "b", "c"), size_hw=(64, 96), category_ids=(2, 4, 8))
KEEP = Thresholds(conf=0.15, nms=0.45)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "mine.safetensors"
    model = lively_nano()
    with torch.no_grad():
        for layer in (*model.head.obj_preds, *model.head.cls_preds):
            layer.bias += 4  # else an untrained network is sure of nothing
    save_weights(path, model, SPEC)
    return path


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    generate_scenes(folder, images=4, seed=1, size_hw=(96, 128), classes=("circle", "square", "triangle"))
    return folder


@pytest.fixture(scope="module")
def end_to_end(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """One export with everything: decoded, any size, suppression."""
    config = ExportConfig(dynamic=True, suppression=Suppression(conf=KEEP.conf, nms=KEEP.nms, max_boxes=50))
    return export(weights, tmp_path_factory.mktemp("out") / "all.onnx", config)


def _images(count: int, size_hw: tuple[int, int] = SPEC.size_hw) -> Any:
    return np.random.default_rng(count).uniform(0, 255, (count, 3, *size_hw)).astype(np.float32)


def test_a_plain_export_gives_the_networks_outputs(boxwright: Command, weights: Path, tmp_path: Path) -> None:
    done = boxwright("export", weights, "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert (said["path"], said["format"], said["precision"], said["output"]) == ("mine.onnx", "onnx", "32", "raw")
    assert [c["batch"] for c in said["checks"]] == [1, 3]
    assert 0 < said["distance"] < said["bound"] == 1e-3
    assert [p.name for p in tmp_path.iterdir()] == ["mine.onnx"]
    assert said["size_mb"] == pytest.approx((tmp_path / "mine.onnx").stat().st_size / 1e6, abs=1e-3)
    file = open_model(tmp_path / "mine.onnx")
    assert file.spec == SPEC
    for count in (1, 2, 5):
        images = _images(count)
        np.testing.assert_allclose(file(images), open_model(weights)(images), atol=1e-3)
    again = boxwright("export", weights)
    assert again.code == 2
    assert "'mine.onnx' exists already" in again.err


def test_the_end_to_end_file_says_so(end_to_end: Exported) -> None:
    assert end_to_end.form == "suppressed"
    assert [c.size_hw for c in end_to_end.checks] == [(64, 96)] * 2 + [(96, 160)] * 2 + [(32, 96)] * 2
    assert end_to_end.recipe["suppression"] == {"conf": 0.15, "nms": 0.45, "max_boxes": 50}
    graph = onnx.load(end_to_end.path).graph
    assert [o.name for o in graph.output] == ["num", "boxes", "scores", "classes"]
    assert {p.key for p in onnx.load(end_to_end.path).metadata_props} == {"boxwright", "boxwright_nms"}


@pytest.mark.parametrize("size_hw", [(64, 96), (96, 64)])
def test_the_end_to_end_file_finds_what_the_weights_find(
    end_to_end: Exported, weights: Path, size_hw: tuple[int, int]
) -> None:
    options = ModelOptions(size_hw=size_hw)
    image = _images(1, size_hw)[0].transpose(1, 2, 0).astype(np.uint8)
    with (
        Predictor.load(end_to_end.path, thresholds=KEEP, options=options) as ours,
        Predictor.load(weights, thresholds=KEEP, options=options) as reference,
    ):
        found, expected = ours(image), reference(image)
    assert len(expected) > 3
    assert found.labels == expected.labels[:50]
    np.testing.assert_allclose(found.boxes_xyxy, expected.boxes_xyxy[:50], atol=0.05)
    np.testing.assert_allclose(found.scores, expected.scores[:50], atol=1e-4)


def test_the_end_to_end_file_is_scored_like_any_other(boxwright: Command, end_to_end: Exported, scenes: Path) -> None:
    done = boxwright("eval", end_to_end.path, "--data", scenes, "--names", "circle,square,triangle", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["images"] == 4
    info = boxwright("info", end_to_end.path, "--json")
    assert json.loads(info.out)["num_classes"] == 3


def test_an_int8_file_with_a_fixed_batch_and_decoded_boxes(
    boxwright: Command, weights: Path, scenes: Path, tmp_path: Path
) -> None:
    done = boxwright(
        "export", weights, "--precision", "int8", "--calibration", scenes, "--decode", "-b", "2", "--out", "two.onnx"
    )
    assert done.code == 0, done.err
    assert "precision int8, output decoded" in done.out
    assert "layers in int8; in float: " in done.out
    assert "2x64x96: " in done.out
    model = onnx.load(tmp_path / "two.onnx")
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
    assert {o.domain for o in model.opset_import} == {""}
    assert sum(node.op_type == "QuantizeLinear" for node in model.graph.node) > 100
    assert (tmp_path / "two.onnx").stat().st_size < weights.stat().st_size / 2
    session = open_model(tmp_path / "two.onnx")
    assert session.spec.output == "decoded"
    assert session(_images(3)).shape == (3, SPEC.num_anchors, 8)


@pytest.mark.parametrize(("format_", "file"), [("openvino", "model.xml"), ("torchscript", "model.ts")])
def test_other_formats_are_folders_that_run_by_themselves(
    weights: Path, tmp_path: Path, format_: str, file: str
) -> None:
    runtime = {"openvino": "openvino", "torchscript": "jit"}[format_]
    assert not catalogue.find("runtime", runtime).missing()
    written = export(weights, tmp_path / "folder", ExportConfig(format=format_, decode=True))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder"]
    assert (written.path / file).is_file()
    images = _images(2)
    expected = open_model(written.path)(images)
    assert open_model(written.path).spec.output == "decoded"
    np.testing.assert_array_equal(open_model(written.path / file)(images), expected)


def test_options_without_meaning_are_refused(boxwright: Command, weights: Path, tmp_path: Path) -> None:
    done = boxwright("export", weights, "--conf", "0.5")
    assert (done.code, "Add --nms" in done.err) == (2, True)
    done = boxwright("export", weights, "--precision", "int8")
    assert (done.code, "--calibration PATH" in done.err) == (2, True)
    done = boxwright("export", weights, "--format", "tflite")
    assert done.code == 2
    assert list(tmp_path.iterdir()) == []
