from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from support.toy import save_graph

from boxwright.detector.postprocess import postprocess
from boxwright.runtimes.onnx_nms import add_suppression, suppress_file
from boxwright.runtimes.onnxruntime_ import OnnxGraph

PLACES, CLASSES = 84, 3  # of a 64x64 input


def _decoded(path: Path) -> Path:
    """Write a file whose decoded output is its input."""
    given = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", "places", 5 + CLASSES])
    gives = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", "places", 5 + CLASSES])
    save_graph(path, helper.make_graph([helper.make_node("Identity", ["images"], ["output"])], "d", [given], [gives]))
    return path


def _scene(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Return outputs with many boxes on top of each other."""
    output = np.zeros((count, PLACES, 5 + CLASSES), np.float32)
    centres = rng.uniform(10, 54, (count, 6, 2))
    output[..., :2] = centres[:, rng.integers(0, 6, PLACES)] + rng.normal(0, 2, (count, PLACES, 2))
    output[..., 2:4] = rng.uniform(8, 24, (count, PLACES, 2))
    output[..., 4:] = rng.uniform(0, 1, (count, PLACES, 1 + CLASSES))
    return output


@pytest.mark.parametrize(("conf", "nms"), [(0.3, 0.45), (0.0, 0.65), (0.5, 0.0), (0.1, 1.0), (1.0, 0.5)])
@pytest.mark.parametrize("count", [1, 3])
def test_what_is_left_is_what_our_own_suppression_leaves(tmp_path: Path, conf: float, nms: float, count: int) -> None:
    suppress_file(_decoded(tmp_path / "d.onnx"), tmp_path / "n.onnx", conf=conf, nms=nms, max_boxes=PLACES)
    output = _scene(np.random.default_rng(count), count)
    num, boxes, scores, classes = OnnxGraph(tmp_path / "n.onnx").run([output])
    assert (boxes.shape, scores.shape, classes.shape) == ((count, PLACES, 4), (count, PLACES), (count, PLACES))
    for i in range(count):
        wanted = postprocess(output[i], size_hw=(64, 64), form="decoded", conf=conf, nms=nms)
        assert num[i] == len(wanted[1])
        for found, expected in zip((boxes[i], scores[i], classes[i]), wanted, strict=True):
            np.testing.assert_allclose(found[: num[i]], expected, rtol=1e-5)
        assert not boxes[i, num[i] :].any()
        assert not scores[i, num[i] :].any()
        assert (classes[i, num[i] :] == -1).all()


def test_a_score_that_equals_the_threshold_is_kept(tmp_path: Path) -> None:
    suppress_file(_decoded(tmp_path / "d.onnx"), tmp_path / "n.onnx", conf=0.25, nms=0.5, max_boxes=5)
    output = np.zeros((1, PLACES, 5 + CLASSES), np.float32)
    output[0, 7] = [20, 20, 8, 8, 0.5, 0.1, 0.5, 0.2]
    output[0, 9] = [40, 40, 8, 8, 0.5, 0.1, 0.4999, 0.2]
    num, boxes, scores, classes = OnnxGraph(tmp_path / "n.onnx").run([output])
    assert (num.tolist(), scores[0, 0], classes[0, 0]) == ([1], 0.25, 1)
    assert boxes[0, 0].tolist() == [16, 16, 24, 24]


def test_no_more_boxes_are_given_than_asked_for_and_they_are_the_best(tmp_path: Path) -> None:
    suppress_file(_decoded(tmp_path / "d.onnx"), tmp_path / "n.onnx", conf=0.1, nms=0.9, max_boxes=4)
    output = _scene(np.random.default_rng(5), 2)
    num, boxes, scores, _ = OnnxGraph(tmp_path / "n.onnx").run([output])
    assert num.tolist() == [4, 4]
    assert boxes.shape == (2, 4, 4)
    for i in range(2):
        wanted = postprocess(output[i], size_hw=(64, 64), form="decoded", conf=0.1, nms=0.9)[1]
        np.testing.assert_allclose(scores[i], wanted[:4], rtol=1e-5)


def test_an_image_without_boxes_gives_none(tmp_path: Path) -> None:
    suppress_file(_decoded(tmp_path / "d.onnx"), tmp_path / "n.onnx", conf=0.25, nms=0.5, max_boxes=300)
    num, boxes, _, classes = OnnxGraph(tmp_path / "n.onnx").run([np.zeros((2, PLACES, 5 + CLASSES), np.float32)])
    assert (num.tolist(), boxes.any(), set(classes.ravel())) == ([0, 0], False, {-1})


def test_the_given_model_is_not_changed(tmp_path: Path) -> None:
    model = onnx.load(_decoded(tmp_path / "d.onnx"))
    before = model.SerializeToString()
    changed = add_suppression(model, conf=0.25, nms=0.5, max_boxes=300)
    assert model.SerializeToString() == before
    onnx.checker.check_model(changed, full_check=True)
    assert [o.name for o in changed.graph.output] == ["num", "boxes", "scores", "classes"]
