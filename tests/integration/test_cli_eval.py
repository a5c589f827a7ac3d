"""`boxwright eval` over the toy detector and a small real network."""

import json
from pathlib import Path

import pytest
from support.fixtures import Command
from support.networks import lively_nano
from support.scenes import NAMES, save_labelled_set
from support.toy import save_toy_onnx, toy_spec

from boxwright.core.spec import Spec
from boxwright.detector.weights import save_weights

pytestmark = pytest.mark.usefixtures("one_torch_thread")
SCENES = [[("red", 1, 1)], [("green", 2, 2), ("blue", 5, 5)], [], [("red", 0, 7)]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_labelled_set(tmp_path / "data", SCENES)


def test_the_twelve_lines_and_the_classes_are_printed(boxwright: Command, toy_onnx: Path, data: Path) -> None:
    done = boxwright("eval", toy_onnx, "--data", data, "--per-class")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == " Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 1.000"
    assert sum(line.startswith(" Average") for line in lines) == 12
    assert [line.split()[0] for line in lines[12:15]] == list(NAMES)
    assert "conf 0.001, nms 0.65; " in lines[-1]


@pytest.mark.parametrize("form", ["raw", "scores", "decoded"])
def test_json_is_one_object_and_every_output_form_scores_the_same(
    boxwright: Command, data: Path, tmp_path: Path, form: str
) -> None:
    model = save_toy_onnx(tmp_path / "toy.onnx", form=form, batch=1)  # type: ignore[arg-type]
    done = boxwright("eval", model, "--data", data / "instances.json", "--json", "--names", ",".join(NAMES))
    assert done.code == 0
    values = json.loads(done.out)
    assert values["AP"] == values["AP50"] == values["AP75"] == pytest.approx(1)
    assert (values["images"], values["truths"], values["detections"]) == (4, 4, 4)
    assert {name: entry["AP"] for name, entry in values["per_class"].items()} == pytest.approx(dict.fromkeys(NAMES, 1))
    assert values["failures"] == values["missing"] == []


def test_the_thresholds_and_the_limit_reach_the_evaluation(boxwright: Command, toy_onnx: Path, data: Path) -> None:
    done = boxwright("eval", toy_onnx, "--data", data, "--json", "--conf", "0.01", "--nms", "0.5", "--limit", "2")
    values = json.loads(done.out)
    assert (values["conf"], values["nms"], values["images"]) == (0.01, 0.5, 2)


def test_classes_can_suppress_each_other(boxwright: Command, tmp_path: Path) -> None:
    model = save_toy_onnx(tmp_path / "twins.onnx", twins=True, spec=toy_spec())
    data = save_labelled_set(tmp_path / "data", [[("red", 0, 0), ("blue", 1, 0)]])
    for words, count in (((), 2), (("--class-agnostic",), 1)):
        assert json.loads(boxwright("eval", model, "--data", data, "--json", *words).out)["detections"] == count


def test_legacy_preprocessing_changes_what_is_found(boxwright: Command, toy_onnx: Path, data: Path) -> None:
    done = boxwright("eval", toy_onnx, "--data", data, "--json", "--legacy")
    assert json.loads(done.out)["AP"] == 0


def test_an_image_that_cannot_be_read_is_left_out_and_the_exit_code_says_so(
    boxwright: Command, toy_onnx: Path, data: Path
) -> None:
    (data / "images" / "0002.png").write_text("no image")
    done = boxwright("eval", toy_onnx, "--data", data, "--json")
    assert done.code == 3
    values = json.loads(done.out)
    assert values["images"] == 3
    assert [Path(f["source"]).name for f in values["failures"]] == ["0002.png"]
    assert "0002.png" in done.err


def test_a_set_with_other_classes_is_a_model_error(boxwright: Command, toy_onnx: Path, tmp_path: Path) -> None:
    other = save_labelled_set(tmp_path / "other", [[("red", 1, 1)]], names=("red", "violet"))
    done = boxwright("eval", toy_onnx, "--data", other, "--json")
    assert done.code == 4
    assert done.out == ""
    assert "knows 3 classes ('red', 'green', 'blue')" in done.err
    assert "does not know 'violet'" in done.err


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "There is no data set at"),
        ("models", "Cannot|holds neither|labels"),
        ("broken.json", "not valid json"),
    ],
)
def test_a_set_that_cannot_be_read_is_a_data_error(
    boxwright: Command, toy_onnx: Path, tmp_path: Path, path: str, message: str
) -> None:
    (tmp_path / "broken.json").write_text("{")
    done = boxwright("eval", toy_onnx, "--data", path)
    assert done.code == 3
    assert done.err.startswith("DataError: ")
    assert any(part in done.err for part in message.split("|"))


def test_a_wrong_number_of_names_is_a_usage_error(boxwright: Command, toy_onnx: Path, data: Path) -> None:
    done = boxwright("eval", toy_onnx, "--data", data, "--names", "a,b,c,d")
    assert done.code == 2
    assert "4 class names" in done.err


def test_a_safetensors_file_is_scored_at_a_size_that_is_not_square(
    boxwright: Command, data: Path, tmp_path: Path
) -> None:
    save_weights(tmp_path / "mine.safetensors", lively_nano(), Spec(model="yolox_nano", names=NAMES, size_hw=(64, 64)))
    done = boxwright("eval", "mine.safetensors", "--data", data, "--json", "--size", "64x96", "--conf", "0.01")
    assert done.code == 0
    values = json.loads(done.out)
    assert values["images"] == 4
    assert values["detections"] > 0
    assert 0 <= values["AP"] < 1
