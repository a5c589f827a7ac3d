import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.scenes import scene
from support.toy import ToySession, save_toy_onnx, toy_spec

from boxwright.core.errors import CheckpointError
from boxwright.runtimes.onnxruntime_ import OnnxFile, OnnxSession
from boxwright.vision.letterbox import to_input


def test_a_file_says_what_it_takes(tmp_path: Path) -> None:
    fixed = OnnxFile(save_toy_onnx(tmp_path / "fixed.onnx", batch=2, size_hw=(32, 64)))
    free = OnnxFile(save_toy_onnx(tmp_path / "free.onnx", free_size=True, spec=toy_spec()))
    assert (fixed.batch, fixed.size_hw, fixed.stored_spec) == (2, (32, 64), None)
    assert (free.batch, free.size_hw, free.stored_spec) == (None, None, toy_spec())


def test_a_session_gives_what_the_graph_says(tmp_path: Path) -> None:
    images = to_input(np.stack([scene(("red", 0, 0)), scene(("blue", 3, 4))]), "bgr255")
    session = OnnxSession(OnnxFile(save_toy_onnx(tmp_path / "toy.onnx")), toy_spec())
    np.testing.assert_allclose(session(images), ToySession()(images), atol=1e-4)


@pytest.mark.parametrize("text", ["{", "[]", '{"names": []}', '{"names": ["a"], "size_hw": [63, 64]}'])
def test_a_broken_description_inside_a_file_is_refused(tmp_path: Path, text: str) -> None:
    path = save_toy_onnx(tmp_path / "toy.onnx", spec=toy_spec())
    model = onnx.load(path)
    model.metadata_props[0].value = text
    onnx.save(model, path)
    with pytest.raises(CheckpointError, match=r"description inside '.*toy\.onnx' can't be read"):
        OnnxFile(path)


def test_the_description_is_plain_json(tmp_path: Path) -> None:
    path = save_toy_onnx(tmp_path / "toy.onnx", spec=toy_spec(category_ids=(7, 8, 9)))
    (entry,) = onnx.load(path).metadata_props
    assert (entry.key, json.loads(entry.value)["category_ids"]) == ("boxwright", [7, 8, 9])


def test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    session = OnnxSession(OnnxFile(save_toy_onnx(tmp_path / "toy.onnx")), toy_spec())
    with pytest.raises(CheckpointError, match=r"can't run float32 images of shape \(1, 3, 32, 32\)"):
        session(np.zeros((1, 3, 32, 32), np.float32))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="There is no model file"):
        OnnxFile(tmp_path / "missing.onnx")
