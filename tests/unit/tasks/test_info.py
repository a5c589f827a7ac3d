import json
from pathlib import Path

import pytest
import torch
from support.networks import lively_nano
from support.toy import save_toy_onnx, toy_spec

from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.spec import Spec
from boxwright.detector.weights import save_weights
from boxwright.runtimes.artifact import write_artifact
from boxwright.runtimes.base import Choice
from boxwright.runtimes.source import Source
from boxwright.runtimes.trust import hash_file
from boxwright.tasks.info import describe
from boxwright.tasks.models import ModelOptions

pytestmark = pytest.mark.usefixtures("one_torch_thread")


# The figures that the authors publish for 80 classes.
@pytest.mark.parametrize(
    ("name", "millions", "gflops"), [("yolox_nano", 0.91, 1.08), ("yolox-tiny", 5.06, 6.45), ("yolox_s", 9.0, 26.8)]
)
def test_a_name_without_weights_is_described_by_its_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, millions: float, gflops: float
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # where weights may lie
    info = describe(name)
    assert info.kind == "name"
    assert info.cost.parameters is not None
    assert info.cost.gflops is not None
    assert info.cost.parameters / 1e6 == pytest.approx(millions, rel=0.01)
    assert info.cost.gflops == pytest.approx(gflops, rel=0.04)  # theirs count normalisation too
    assert info.spec.num_classes == 80
    assert "no weights" in info.note


def test_a_name_takes_the_users_classes_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # where weights may lie
    options = ModelOptions(names=("a", "b"), size_hw=(64, 96), preprocessing="legacy", activation="relu")
    spec = describe("yolox_nano", options).spec
    assert (spec.names, spec.size_hw, spec.preprocessing, spec.activation) == (("a", "b"), (64, 96), "legacy", "relu")
    with pytest.raises(UsageError, match="--output-form 'scores' does not apply"):
        describe("yolox_nano", ModelOptions(output="scores"))


def test_a_checkpoint_is_described_with_its_file(tmp_path: Path) -> None:
    model = lively_nano()
    path = tmp_path / "mine.safetensors"
    save_weights(path, model, Spec(model="yolox_nano", names=("a", "b", "c"), size_hw=(64, 64)))
    info = describe(path)
    assert info.kind == "checkpoint"
    assert info.cost.parameters == sum(p.numel() for p in model.parameters())
    assert info.file_mb == pytest.approx(path.stat().st_size / 1e6)
    values = json.loads(json.dumps(info.to_dict()))
    assert (values["num_classes"], values["names"], values["model"]) == (3, ["a", "b", "c"], "yolox_nano")


def test_an_artifact_folder_is_described_as_a_whole(tmp_path: Path) -> None:
    spec = Spec(model="yolox_nano", names=("a", "b", "c"), size_hw=(64, 64))
    source = Source.of(lively_nano(), (torch.zeros(1, 3, 64, 64),))
    write_artifact(source, Choice(runtime="eager"), tmp_path / "art", spec=spec)
    info = describe(tmp_path / "art")
    assert (info.kind, info.spec) == ("artifact", spec)
    assert info.file_mb == pytest.approx(sum(p.stat().st_size for p in (tmp_path / "art").iterdir()) / 1e6)


def test_an_artifact_is_described_without_being_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "art"
    source = Source.of(lively_nano(), (torch.zeros(1, 3, 64, 64),))
    write_artifact(source, Choice(runtime="eager"), folder, spec=Spec(names=("a", "b", "c"), size_hw=(64, 64)))
    (folder / "program.json").write_text("nothing that can be loaded")
    with pytest.raises(CheckpointError, match="has changed since it was written"):
        describe(folder)
    values = json.loads((folder / "artifact.json").read_text())
    values["files"]["program.json"] = hash_file(folder / "program.json")
    (folder / "artifact.json").write_text(json.dumps(values))
    assert describe(folder).spec.names == ("a", "b", "c")
    assert describe(folder, ModelOptions(names=("x", "y", "z"))).spec.names == ("x", "y", "z")


def test_an_onnx_file_tells_its_weights_and_says_that_it_cannot_tell_more(tmp_path: Path) -> None:
    info = describe(save_toy_onnx(tmp_path / "toy.onnx"))
    assert info.kind == "onnx"
    # 3x3 and 4x3 weights, 4 biases, and the constant parts of the output: 84 boxes and 20 rows of 4.
    assert info.cost.parameters == 9 + 12 + 4 + 84 * 4 + 20 * 4
    assert info.cost.gflops is None
    assert "GFLOPs are counted on the network" in info.note


def test_a_damaged_onnx_file_in_an_artifact_is_a_model_error(tmp_path: Path) -> None:
    folder = tmp_path / "art"
    source = Source.of(lively_nano(), (torch.zeros(1, 3, 64, 64),))
    write_artifact(source, Choice(runtime="eager"), folder, spec=Spec(names=("a", "b", "c"), size_hw=(64, 64)))
    (folder / "model.onnx").write_bytes(b"\xff" * 30)
    values = json.loads((folder / "artifact.json").read_text())
    values["files"]["model.onnx"] = hash_file(folder / "model.onnx")
    (folder / "artifact.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=r"'[^']*model\.onnx'"):
        describe(folder)


def test_a_file_of_an_unknown_network_is_described_without_its_cost(tmp_path: Path) -> None:
    assert describe(save_toy_onnx(tmp_path / "toy.onnx", spec=toy_spec(model="[1, 2]"))).cost.gflops is None


def test_the_lines_for_people_hold_the_same_facts(tmp_path: Path) -> None:
    text = "\n".join(describe(save_toy_onnx(tmp_path / "toy.onnx", spec=toy_spec(model="yolox_nano"))).lines())
    for part in ("yolox_nano (onnx: ", "3: red, green, blue", "bgr255, 64x64", "raw, 84 rows", "GFLOPs"):
        assert part in text


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no model file"):
        describe(tmp_path / "missing.onnx")
    with pytest.raises(CheckpointError, match="Did you mean 'yolox_x'"):
        describe("yolox_xx")
