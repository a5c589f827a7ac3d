import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.scenes import scene
from support.toy import ToySession, save_toy_onnx, toy_spec

from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.signature import Port
from boxwright.core.types import Precision
from boxwright.runtimes.base import Choice, Tuning
from boxwright.runtimes.detector import DetectorSession
from boxwright.runtimes.onnxruntime_ import OnnxGraph, OnnxRuntime
from boxwright.vision.letterbox import to_input


def test_a_file_says_what_it_takes_and_gives(tmp_path: Path) -> None:
    fixed = OnnxGraph(save_toy_onnx(tmp_path / "fixed.onnx", batch=2, size_hw=(32, 64)))
    assert fixed.signature.inputs == (Port(name="images", dtype="float32", shape=(2, 3, 32, 64)),)
    assert fixed.signature.outputs == (Port(name="output", dtype="float32", shape=(2, 42, 8)),)
    assert fixed.metadata == {}
    free = OnnxGraph(save_toy_onnx(tmp_path / "free.onnx", free_size=True, spec=toy_spec()))
    assert free.signature.inputs[0].shape == (None, 3, None, None)
    assert json.loads(free.metadata["boxwright"])["names"] == ["red", "green", "blue"]


def test_a_session_gives_what_the_graph_says(tmp_path: Path) -> None:
    images = to_input(np.stack([scene(("red", 0, 0)), scene(("blue", 3, 4))]), "bgr255")
    session = DetectorSession(OnnxGraph(save_toy_onnx(tmp_path / "toy.onnx")), toy_spec())
    np.testing.assert_allclose(session(images), ToySession()(images), atol=1e-4)


def test_a_run_that_fails_prints_nothing_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    graph = OnnxGraph(save_toy_onnx(tmp_path / "toy.onnx", free_size=True))
    with pytest.raises(Exception, match="Concat"):
        graph.run([np.zeros((1, 3, 96, 96), np.float32)])
    assert capfd.readouterr().err == ""


def test_a_file_that_cannot_be_loaded_prints_nothing_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shape = onnx.TensorProto(name="shape", data_type=onnx.TensorProto.INT64, dims=[2**62])
    ports = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, 3, 64, 64))
        for name in ("images", "output")
    ]
    node = onnx.helper.make_node("Reshape", ["images", "shape"], ["output"])
    graph = onnx.helper.make_graph([node], "huge", ports[:1], ports[1:], [shape])
    path = tmp_path / "huge.onnx"
    path.write_bytes(
        onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9
        ).SerializeToString()
    )
    with pytest.raises(CheckpointError, match=r"huge\.onnx"):
        OnnxGraph(path)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("tuning", [Tuning(), Tuning(threads=2), Tuning(hint="throughput"), Tuning(streams=3)])
def test_many_requests_come_back_in_their_order(tmp_path: Path, tuning: Tuning) -> None:
    graph = OnnxGraph(save_toy_onnx(tmp_path / "toy.onnx"), tuning=tuning)
    batches = [to_input(np.stack([scene(("red", i, 7 - i))] * (1 + i % 3)), "bgr255") for i in range(8)]
    found = list(graph.run_all([images] for images in batches))
    assert [output.shape[0] for (output,) in found] == [1, 2, 3, 1, 2, 3, 1, 2]
    for images, (output,) in zip(batches, found, strict=True):
        np.testing.assert_array_equal(output, graph.run([images])[0])
    graph.close()


def test_requests_are_taken_as_they_are_needed(tmp_path: Path) -> None:
    graph = OnnxGraph(save_toy_onnx(tmp_path / "toy.onnx"), tuning=Tuning(threads=1, streams=2))
    taken = []

    def endless() -> object:
        while True:
            taken.append(len(taken))
            yield [np.zeros((1, 3, 64, 64), np.float32)]

    stream = graph.run_all(endless())  # type: ignore[arg-type]
    next(stream)
    next(stream)
    assert len(taken) <= 5
    stream.close()  # type: ignore[attr-defined]
    graph.close()


def test_a_failing_request_is_told_and_the_graph_goes_on(tmp_path: Path) -> None:
    graph = OnnxGraph(save_toy_onnx(tmp_path / "toy.onnx"), tuning=Tuning(streams=2))
    good, bad = np.zeros((1, 3, 64, 64), np.float32), np.zeros((1, 3, 32, 32), np.float32)
    with pytest.raises(CheckpointError, match=r"can't run float32 of shape \(1, 3, 32, 32\)"):
        list(graph.run_all([[good], [bad], [good], [good], [good]]))
    assert len(list(graph.run_all([[good]] * 5))) == 5
    graph.close()
    graph.close()
    with pytest.raises(CheckpointError, match="is closed"):
        graph.run([good])


def test_the_description_is_plain_json(tmp_path: Path) -> None:
    path = save_toy_onnx(tmp_path / "toy.onnx", spec=toy_spec(category_ids=(7, 8, 9)))
    (entry,) = onnx.load(path).metadata_props
    assert (entry.key, json.loads(entry.value)["category_ids"]) == ("boxwright", [7, 8, 9])


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="There is no model file"):
        OnnxGraph(tmp_path / "missing.onnx")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"precision": Precision.BF16}, "no precision 'bf16'.* 32, int8"),
        ({"mode": "qlinear"}, "no mode 'qlinear' for precision '32'"),
        ({"precision": Precision.INT8}, "no mode ''.* 'qlinear', 'integer'"),
        ({"precision": Precision.INT8, "mode": "qlinear"}, "needs calibration inputs"),
        ({"channels_last": True}, "channels_last does not apply"),
    ],
)
def test_a_choice_that_is_not_offered_is_refused(tmp_path: Path, choice: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        OnnxRuntime().convert(None, Choice(runtime="onnxruntime", **choice), tmp_path, None)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
