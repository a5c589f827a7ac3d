import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.scenes import NAMES, scene
from support.toy import save_graph, save_toy_onnx, toy_spec

from boxwright.core.coco_classes import COCO_CATEGORY_IDS, COCO_NAMES
from boxwright.core.errors import CheckpointError, MissingDependencyError, UsageError
from boxwright.devices.chosen import Chosen
from boxwright.runtimes.base import Tuning
from boxwright.tasks.models import ModelOptions, default_names, find_model, open_model, parse_names, place_model
from boxwright.tasks.onnx_file import guess_form
from boxwright.vision.letterbox import to_input

FORMS = ("raw", "scores", "decoded")


def _identity(path: Path, *, channels: int = 3, inputs: int = 1, dtype: int = TensorProto.FLOAT) -> Path:
    names = [f"input_{i}" for i in range(inputs)]
    given = [helper.make_tensor_value_info(name, dtype, ["batch", channels, 64, 64]) for name in names]
    gives = [helper.make_tensor_value_info("output", dtype, None)]
    save_graph(path, helper.make_graph([helper.make_node("Sum", names, ["output"])], "other", given, gives))
    return path


def test_a_path_that_exists_is_the_model(tmp_path: Path) -> None:
    path = tmp_path / "mine.onnx"
    path.touch()
    assert find_model(path) == find_model(str(path)) == path


@pytest.mark.parametrize("place", [".", "weights", "weights/yolox_nano", "yolox_nano"])
def test_a_bare_name_is_looked_for_in_the_usual_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path(place) / "yolox_nano.pth"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    assert find_model("yolox_nano") == file
    assert find_model("YOLOX-Nano") == file


def test_a_bare_name_is_looked_for_in_the_cache_wherever_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "moved"))
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved/yolox_nano.pth").touch()
    assert find_model("yolox_nano") == tmp_path / "moved/yolox_nano.pth"


@pytest.mark.parametrize("suffix", [".onnx", ".pth", ".safetensors", ""])
def test_a_fifo_is_no_model(tmp_path: Path, suffix: str) -> None:
    os.mkfifo(tmp_path / f"a{suffix}")
    with pytest.raises(CheckpointError, match="it is a FIFO"):
        find_model(tmp_path / f"a{suffix}")


def test_a_folder_of_the_models_name_is_not_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = Path("yolox_nano")
    folder.mkdir()
    (folder / "artifact.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"No weights for 'yolox_nano'.*'\./yolox_nano'"):
        find_model("yolox_nano")
    assert find_model("./yolox_nano") == find_model(folder) == folder
    Path("yolox_nano.onnx").touch()
    assert find_model("yolox_nano") == Path("yolox_nano.onnx")


def test_a_name_without_weights_says_where_they_may_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"'yolox_s'.*yolox_s\.pth.*'weights'"):
        find_model("yolox_s")


def test_a_missing_file_and_a_misspelt_name_are_told_apart() -> None:
    with pytest.raises(CheckpointError, match=r"no model file at 'nowhere/mine\.onnx'"):
        find_model("nowhere/mine.onnx")
    with pytest.raises(CheckpointError, match="Did you mean 'yolox_nano'"):
        find_model("yolox_nan0")


def test_a_name_too_long_for_a_file_is_still_only_an_unknown_model() -> None:
    with pytest.raises(CheckpointError, match="neither a file"):
        find_model("x" * 400)


def test_a_file_of_another_kind_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.zip").touch()
    with pytest.raises(CheckpointError, match="known kind of model file"):
        open_model(tmp_path / "model.zip")
    with pytest.raises(CheckpointError, match=r"holds no artifact\.json"):
        open_model(tmp_path)


def test_a_file_that_only_calls_itself_onnx_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("hello")
    with pytest.raises(CheckpointError, match="can't be loaded by ONNX Runtime"):
        open_model(path)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"inputs": 2}, "not a detector of this family"),
        ({"channels": 4}, "not a detector of this family"),
        ({"dtype": TensorProto.FLOAT16}, "YOLOX detector"),
        ({}, "YOLOX detector"),
    ],
)
def test_an_onnx_file_of_another_network_is_refused(tmp_path: Path, made: dict[str, int], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_model(_identity(tmp_path / "other.onnx", **made))


def _constant(path: Path, shape: tuple[int, ...], *, size: int = 64, dtype: int = TensorProto.FLOAT) -> Path:
    """Write a file whose output does not depend on its input."""
    given = [helper.make_tensor_value_info("images", dtype, (1, 3, size, size))]
    gives = [helper.make_tensor_value_info("output", dtype, shape)]
    if dtype == TensorProto.STRING:
        save_graph(path, helper.make_graph([helper.make_node("Identity", ["images"], ["output"])], "g", given, gives))
        return path
    nodes = [
        helper.make_node("ReduceSum", ["images"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
        helper.make_node("Add", ["constant", "nothing"], ["output"]),
    ]
    constants = [
        numpy_helper.from_array(np.zeros(shape, np.float32), "constant"),
        numpy_helper.from_array(np.float32(0), "zero"),
    ]
    save_graph(path, helper.make_graph(nodes, "g", given, gives, constants))
    return path


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"shape": (2, 84, 85)}, "not a YOLOX detector"),
        ({"shape": (0, 84, 85)}, "not a YOLOX detector"),
        ({"shape": (1, 84, 85), "size": 2**20}, "too large"),
        ({"shape": (1, 3, 64, 64), "dtype": TensorProto.STRING}, "not a detector of this family"),
    ],
)
def test_an_onnx_file_of_odd_shapes_or_types_is_refused(tmp_path: Path, made: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_model(_constant(tmp_path / "odd.onnx", **made))


@pytest.mark.parametrize(
    "text",
    ["[" * 200_000, '{"names": ["a"], "size_hw": [64, 64], "strides": [0]}', '{"names": ["a"], "size_hw": [9e9, 64]}'],
    ids=lambda text: text[-9:],
)
def test_an_onnx_file_with_an_odd_description_is_refused(tmp_path: Path, text: str) -> None:
    path = save_toy_onnx(tmp_path / "toy.onnx")
    model = onnx.load(path)
    helper.set_model_props(model, {"boxwright": text})
    onnx.save(model, path)
    with pytest.raises(CheckpointError, match="description inside"):
        open_model(path)


def test_an_onnx_file_that_names_other_classes_than_it_gives_is_a_model_error(tmp_path: Path) -> None:
    path = save_toy_onnx(tmp_path / "toy.onnx", spec=toy_spec(names=("a", "b")))
    with pytest.raises(CheckpointError, match="does not fit it"):
        open_model(path)(np.zeros((1, 3, 64, 64), np.float32))


@pytest.mark.parametrize(
    ("count", "class_id", "kept", "message"),
    [(10**9, 0, 5, "more boxes than it gives"), (-1, 0, 5, "more boxes"), (5, 99, 5, "classes without a name"),
     (5, -1, 5, "classes without a name"), (500, 0, 500, "more boxes")],
)  # fmt: skip
def test_a_file_that_suppresses_boxes_itself_is_not_believed(
    tmp_path: Path, count: int, class_id: int, kept: int, message: str
) -> None:
    values = {
        "num": np.array([count]),
        "boxes": np.zeros((1, kept, 4), np.float32),
        "scores": np.ones((1, kept), np.float32),
        "classes": np.full((1, kept), class_id),
    }
    types = {np.dtype(np.int64): TensorProto.INT64, np.dtype(np.float32): TensorProto.FLOAT}
    nodes = [helper.make_node("Identity", [f"own_{name}"], [name]) for name in values]
    graph = helper.make_graph(
        [*nodes, helper.make_node("Identity", ["images"], ["unused"])],
        "g",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, (1, 3, 64, 64))],
        [helper.make_tensor_value_info(name, types[a.dtype], a.shape) for name, a in values.items()],
        [numpy_helper.from_array(a, f"own_{name}") for name, a in values.items()],
    )
    save_graph(tmp_path / "nms.onnx", graph, toy_spec())
    model = onnx.load(tmp_path / "nms.onnx")
    helper.set_model_props(model, {"boxwright": json.dumps(toy_spec().to_dict()), "boxwright_nms": "{}"})
    onnx.save(model, tmp_path / "nms.onnx")
    session = open_model(tmp_path / "nms.onnx")
    with pytest.raises(CheckpointError, match=message):
        session(np.zeros((1, 3, 64, 64), np.float32))


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_an_undescribed_file_is_guessed_from_its_output(tmp_path: Path, form: str) -> None:
    session = open_model(save_toy_onnx(tmp_path / "toy.onnx", form=form))  # type: ignore[arg-type]
    assert session.spec.output == form
    assert session.spec.names == ("class_0", "class_1", "class_2")
    assert session.spec.size_hw == (64, 64)


@pytest.mark.parametrize("form", FORMS)
def test_the_form_is_guessed_right_for_outputs_of_a_real_sort(form: str) -> None:
    rng = np.random.default_rng(0)
    spec = toy_spec(size_hw=(416, 416))
    cells = np.concatenate([np.argwhere(np.ones((416 // s, 416 // s)))[:, ::-1] for s in spec.strides])
    step = np.concatenate([np.full((416 // s) ** 2, s) for s in spec.strides])[:, None]
    output = rng.normal(0, 1, (len(step), 85)).astype(np.float32)
    output[:, 4:] -= 8
    if form != "raw":
        output[:, 4:] = 1 / (1 + np.exp(-output[:, 4:]))
    if form == "decoded":
        output[:, :2] = (output[:, :2] + cells) * step
        output[:, 2:4] = np.exp(output[:, 2:4]) * step
    assert guess_form(output, (416, 416)) == form


def test_the_user_may_overrule_the_guess(tmp_path: Path) -> None:
    path = save_toy_onnx(tmp_path / "toy.onnx", form="scores")
    assert open_model(path, ModelOptions(output="decoded")).spec.output == "decoded"


def test_a_described_file_is_taken_at_its_word(tmp_path: Path) -> None:
    spec = toy_spec(model="yolox_nano", preprocessing="legacy", category_ids=(10, 20, 30), activation="relu")
    assert open_model(save_toy_onnx(tmp_path / "toy.ONNX", spec=spec)).spec == spec


@pytest.mark.parametrize("text", ["{", "[]", '{"names": []}', '{"names": ["a"], "size_hw": [63, 64]}'])
def test_a_broken_description_inside_a_file_is_refused(tmp_path: Path, text: str) -> None:
    path = save_toy_onnx(tmp_path / "toy.onnx", spec=toy_spec())
    model = onnx.load(path)
    model.metadata_props[0].value = text
    onnx.save(model, path)
    with pytest.raises(CheckpointError, match=r"description inside '.*toy\.onnx'"):
        open_model(path)


def test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    session = open_model(save_toy_onnx(tmp_path / "toy.onnx"))
    with pytest.raises(UsageError, match=r"takes the shape .*, not \(1, 3, 32, 32\)"):
        session(np.zeros((1, 3, 32, 32), np.float32))


def test_threads_are_for_converted_models(tmp_path: Path) -> None:
    (tmp_path / "weights.pth").touch()
    with pytest.raises(UsageError, match=r"threads=2.* does not apply to weights\.pth"):
        open_model(tmp_path / "weights.pth", tuning=Tuning(threads=2))
    path = save_toy_onnx(tmp_path / "toy.onnx", spec=toy_spec())
    assert open_model(path, tuning=Tuning(threads=1)).spec == toy_spec()


def test_new_names_replace_the_files_and_drop_its_category_ids(tmp_path: Path) -> None:
    path = save_toy_onnx(tmp_path / "toy.onnx", spec=toy_spec(category_ids=(10, 20, 30)))
    renamed = open_model(path, ModelOptions(names=("a", "b", "c"))).spec
    assert (renamed.names, renamed.category_ids) == (("a", "b", "c"), ())
    assert open_model(path, ModelOptions(names=NAMES)).spec.category_ids == (10, 20, 30)


@pytest.mark.parametrize("described", [True, False])
def test_a_wrong_number_of_names_is_refused(tmp_path: Path, described: bool) -> None:
    path = save_toy_onnx(tmp_path / "toy.onnx", spec=toy_spec() if described else None)
    with pytest.raises(UsageError, match=r"2 class names .* 3 classes"):
        open_model(path, ModelOptions(names=("a", "b")))


def test_a_fixed_input_size_cannot_be_changed(tmp_path: Path) -> None:
    path = save_toy_onnx(tmp_path / "toy.onnx")
    with pytest.raises(UsageError, match=r"fixed to \(64, 64\); \(96, 64\)"):
        open_model(path, ModelOptions(size_hw=(96, 64)))
    assert open_model(path, ModelOptions(size_hw=(64, 64))).spec.size_hw == (64, 64)


def test_a_file_of_free_size_asks_for_one(tmp_path: Path) -> None:
    path = save_toy_onnx(tmp_path / "toy.onnx", size_hw=(32, 96), free_size=True)
    with pytest.raises(UsageError, match="Give it with --size"):
        open_model(path)
    assert open_model(path, ModelOptions(size_hw=(32, 96))).spec.size_hw == (32, 96)


def test_an_option_that_cannot_apply_is_refused(tmp_path: Path) -> None:
    described = save_toy_onnx(tmp_path / "toy.onnx", spec=toy_spec())
    with pytest.raises(UsageError, match=r"--act 'relu' does not apply to toy\.onnx"):
        open_model(described, ModelOptions(activation="relu"))
    with pytest.raises(UsageError, match=r"'scores' does not apply to toy\.onnx"):
        open_model(described, ModelOptions(output="scores"))
    weights = tmp_path / "weights.pth"
    weights.touch()
    with pytest.raises(UsageError, match=r"'decoded' does not apply to weights\.pth"):
        open_model(weights, ModelOptions(output="decoded"))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_fixed_batch_takes_any_number_of_images(tmp_path: Path, count: int) -> None:
    fixed = open_model(save_toy_onnx(tmp_path / "two.onnx", batch=2))
    free = open_model(save_toy_onnx(tmp_path / "any.onnx"))
    images = to_input(np.stack([scene(("red", i, i)) for i in range(count)]), "bgr255")
    assert fixed(images).shape == (count, 84, 8)
    np.testing.assert_allclose(fixed(images), free(images), atol=1e-4)


def test_eighty_classes_without_names_are_cocos() -> None:
    assert default_names(80, Path("x.pth"), ModelOptions()) == (COCO_NAMES, COCO_CATEGORY_IDS)
    assert default_names(2, Path("x.pth"), ModelOptions()) == (("class_0", "class_1"), ())


def test_names_come_as_a_list_or_as_a_file(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_text("\ufeffred\n\ntraffic light \n", encoding="utf-8")
    assert parse_names("red, traffic light,") == ("red", "traffic light")
    assert parse_names(str(file)) == ("red", "traffic light")


def test_a_long_list_of_names_is_not_taken_for_a_file() -> None:
    names = tuple(f"a class with a long name {i}" for i in range(80))
    assert parse_names(",".join(names)) == names


@pytest.mark.parametrize(
    ("text", "message"),
    [("a,b,a", "'a' twice"), (" , ", "no name"), ("", "no name"), ("missing.txt", "no such file")],
)
def test_names_that_make_no_sense_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_names(text)


def test_a_names_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "names.bin"
    file.write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(UsageError, match="can't be read as a text file"):
        parse_names(str(file))


def test_weights_and_onnx_files_run_on_the_cpu_unless_a_device_is_named() -> None:
    for name in ("a.pth", "a.onnx"):
        assert place_model(Path(name), None) == place_model(Path(name), "cpu") == Chosen()
        assert place_model(Path(name), "cuda:1") == Chosen("cuda", 1)


def test_auto_is_a_device_that_the_runtime_of_the_file_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boxwright.tasks.models.list_shown", lambda: ("hpu", "cuda"))
    assert place_model(Path("a.onnx"), "auto") == Chosen()  # this ONNX Runtime is for the CPU
    have = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr("boxwright.runtimes.onnxruntime_.onnxruntime.get_available_providers", lambda: have)
    assert place_model(Path("a.onnx"), "auto") == Chosen("cuda")
    assert place_model(Path("a.pth"), "auto") == Chosen()  # which torch can't use here


def test_an_onnx_file_on_a_device_without_a_provider_names_the_package(toy_onnx: Path) -> None:
    with pytest.raises(MissingDependencyError, match="pip install onnxruntime-gpu"):
        open_model(toy_onnx, device="cuda")
