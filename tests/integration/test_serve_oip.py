"""The Open Inference Protocol v2, called with NVIDIA's client: JSON and binary, pictures and tensors."""

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from support.scenes import scene
from support.server import Server
from support.toy import save_toy_onnx, toy_spec

import boxwright
from boxwright import Detections, Predictor

pytest.importorskip("uvicorn")
http = pytest.importorskip("tritonclient.http")

OUTPUTS = ("boxes", "scores", "classes", "counts")
SCENES = [scene(("red", 1, 1), ("blue", 6, 6)), scene(("green", 3, 2)), scene()]
binary = pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy_onnx(tmp_path_factory.mktemp("models") / "toy.onnx", spec=toy_spec())


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(model, "--workers", "1", log=tmp_path_factory.mktemp("logs") / "serve.log") as one:
        yield one


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    one = http.InferenceServerClient(f"127.0.0.1:{server.port}")
    yield one
    one.close()


@pytest.fixture(scope="module")
def expected(model: Path) -> list[Detections]:
    with Predictor.load(model) as predictor:
        found = [predictor(image) for image in SCENES]
    assert [len(one) for one in found] == [2, 1, 0]
    return found


def give(name: str, datatype: str, array: np.ndarray, *, binary: bool) -> Any:
    one = http.InferInput(name, list(array.shape), datatype)
    one.set_data_from_numpy(array, binary_data=binary)
    return one


def want(*names: str, binary: bool) -> list[Any]:
    return [http.InferRequestedOutput(name, binary_data=binary) for name in names]


def encoded(kind: str) -> np.ndarray:
    return np.array([cv2.imencode(kind, image)[1].tobytes() for image in SCENES], object)


def check(result: Any, expected: Sequence[Detections]) -> None:
    """The outputs are those of `Predictor`, one picture's boxes after the other's."""
    boxes, scores, classes, counts = map(result.as_numpy, OUTPUTS)
    assert counts.tolist() == [len(one) for one in expected]
    assert boxes.shape == (sum(counts), 4)
    np.testing.assert_array_equal(boxes, np.concatenate([one.boxes_xyxy for one in expected]))
    np.testing.assert_array_equal(scores, np.concatenate([one.scores for one in expected]))
    np.testing.assert_array_equal(classes, np.concatenate([one.class_ids for one in expected]))


def test_the_server_lives_is_ready_and_describes_itself(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata() == {
        "name": "boxwright", "version": boxwright.__version__, "extensions": ["binary_tensor_data"],
    }  # fmt: skip


def test_a_model_is_ready_and_describes_its_inputs_and_outputs(client: Any) -> None:
    assert client.is_model_ready("toy")
    assert client.is_model_ready("toy", "1")
    assert not client.is_model_ready("toy", "7")
    assert not client.is_model_ready("other")
    for version in ("", "1"):
        about = client.get_model_metadata("toy", version)
        assert (about["name"], about["versions"], about["platform"]) == ("toy", ["1"], "boxwright_onnxruntime")
        assert {one["name"]: (one["datatype"], one["shape"]) for one in about["inputs"]} == {
            "image": ("BYTES", [-1]), "pixels": ("UINT8", [-1, -1, -1, 3]), "tensor": ("FP32", [-1, 3, 64, 64]),
        }  # fmt: skip
        assert {one["name"]: (one["datatype"], one["shape"]) for one in about["outputs"]} == {
            "boxes": ("FP32", [-1, 4]), "scores": ("FP32", [-1]), "classes": ("INT64", [-1]), "counts": ("INT32", [-1]),
        }  # fmt: skip


@binary
@pytest.mark.parametrize("kind", [".png", ".jpg"])
def test_encoded_pictures_in_a_bytes_tensor(client: Any, model: Path, kind: str, binary: bool) -> None:
    pictures = encoded(kind)
    with Predictor.load(model) as predictor:
        expected = [predictor(data) for data in pictures]
    given = give("image", "BYTES", pictures, binary=True)
    if not binary:  # in JSON, bytes are text: base64
        text = np.array([base64.b64encode(data) for data in pictures], object)
        given = give("image", "BYTES", text, binary=False)
    check(client.infer("toy", [given], outputs=want(*OUTPUTS, binary=binary)), expected)


@binary
def test_pixels(client: Any, expected: list[Detections], binary: bool) -> None:
    given = give("pixels", "UINT8", np.stack(SCENES), binary=binary)
    check(client.infer("toy", [given], outputs=want(*OUTPUTS, binary=binary)), expected)


@binary
def test_the_networks_own_input(client: Any, expected: list[Detections], binary: bool) -> None:
    tensor = np.ascontiguousarray(np.stack(SCENES).transpose(0, 3, 1, 2), np.float32)  # 64 x 64: nothing to resize
    given = give("tensor", "FP32", tensor, binary=binary)
    check(client.infer("toy", [given], outputs=want(*OUTPUTS, binary=binary)), expected)


def test_the_id_the_version_and_the_wanted_outputs_alone_come_back(client: Any) -> None:
    given = give("pixels", "UINT8", np.stack(SCENES), binary=True)
    result = client.infer("toy", [given], "1", outputs=want("counts", binary=False), request_id="number 7")
    answer = result.get_response()
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("number 7", "toy", "1")
    assert [one["name"] for one in answer["outputs"]] == ["counts"]
    assert result.as_numpy("boxes") is None


def test_outputs_in_both_forms_in_one_answer(client: Any, expected: list[Detections]) -> None:
    given = give("pixels", "UINT8", np.stack(SCENES), binary=True)
    outputs = [*want("boxes", "classes", binary=True), *want("scores", "counts", binary=False)]
    check(client.infer("toy", [given], outputs=outputs), expected)


def test_thresholds_and_classes_are_parameters(client: Any) -> None:
    given = give("pixels", "UINT8", np.stack(SCENES), binary=True)
    result = client.infer("toy", [given], parameters={"conf": 0.1, "nms": 0.5, "classes": "blue,green"})
    assert result.as_numpy("classes").tolist() == [2, 1]
    assert result.as_numpy("counts").tolist() == [1, 1, 0]


def test_asynchronous_calls_of_the_client(client: Any, expected: list[Detections]) -> None:
    given = give("pixels", "UINT8", np.stack(SCENES), binary=True)
    waiting = [client.async_infer("toy", [given]) for _ in range(4)]
    for one in waiting:
        check(one.get_result(), expected)


@pytest.mark.parametrize(
    ("name", "datatype", "shape", "words"),
    [
        ("images", "UINT8", (1, 8, 8, 3), "Unknown input"),
        ("pixels", "FP32", (1, 8, 8, 3), "datatype"),
        ("pixels", "UINT8", (1, 8, 8, 4), "shape"),
        ("tensor", "FP32", (1, 3, 32, 32), "shape"),
    ],
)
def test_a_wrong_input_is_a_sentence_in_the_clients_error(
    client: Any, name: str, datatype: str, shape: tuple[int, ...], words: str
) -> None:
    array = np.zeros(shape, np.float32 if datatype == "FP32" else np.uint8)
    with pytest.raises(http.InferenceServerException, match=words):
        client.infer("toy", [give(name, datatype, array, binary=True)])


def test_one_unreadable_picture_is_named(client: Any) -> None:
    given = np.array([encoded(".png")[0], b"no picture"], object)
    with pytest.raises(http.InferenceServerException, match="Picture 2"):
        client.infer("toy", [give("image", "BYTES", given, binary=True)])


def test_plain_json_without_a_client(server: Server, expected: list[Detections]) -> None:
    inputs = {"name": "pixels", "datatype": "UINT8", "shape": [1, 64, 64, 3], "data": SCENES[0].tolist()}
    answer = server.request("POST", "/v2/models/toy/infer", json.dumps({"inputs": [inputs]}).encode())
    assert answer.headers["content-type"] == "application/json"
    found = {one["name"]: one["data"] for one in answer.json["outputs"]}
    assert found["counts"] == [2]
    assert found["boxes"] == expected[0].boxes_xyxy.reshape(-1).tolist()
