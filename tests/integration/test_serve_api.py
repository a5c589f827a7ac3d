"""The HTTP API of a real server process: what each path answers, and that answers are those of `Predictor`."""

import json
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
from support.server import Server, form
from support.toy import save_toy_onnx, toy_spec

from boxwright import Predictor, Thresholds

pytest.importorskip("uvicorn")


def picture(seed: int = 0, size_hw: tuple[int, int] = (96, 128)) -> bytes:
    """Return a JPEG with a red and a blue square among noise."""
    image = np.random.default_rng(seed).integers(0, 60, (*size_hw, 3), np.uint8)
    image[16:32, 16:32] = (0, 0, 255)
    image[48:64, 80:96] = (255, 0, 0)
    return cv2.imencode(".jpg", image)[1].tobytes()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy_onnx(tmp_path_factory.mktemp("models") / "toy.onnx", spec=toy_spec())


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(model, f"second={model}", "--workers", "1", log=tmp_path_factory.mktemp("logs") / "serve.log") as one:
        yield one


@pytest.fixture(scope="module")
def predictor(model: Path) -> Iterator[Predictor]:
    with Predictor.load(model) as one:
        yield one


def test_a_picture_gives_what_predictor_gives(server: Server, predictor: Predictor) -> None:
    for seed in range(5):
        answer = server.predict(picture(seed))
        expected = predictor(picture(seed))
        assert answer.status == 200
        assert len(expected) == 2
        assert answer.json["detections"] == expected.to_list()
        assert answer.json["size_hw"] == [96, 128]
        assert answer.json["model"] == "toy"
        assert {"queue", "decode", "network", "boxes", "total"} <= set(answer.json["timings_ms"])


@pytest.mark.parametrize("kind", ["image/png", "application/octet-stream", "application/x-www-form-urlencoded", ""])
def test_the_bytes_say_what_they_are_whatever_the_client_calls_them(server: Server, kind: str) -> None:
    headers = {"content-type": kind} if kind else {}  # curl --data-binary says that it sends a form
    answer = server.request("POST", "/predict", picture(), headers)
    assert answer.json["detections"] == server.predict(picture()).json["detections"]


def test_thresholds_classes_and_model_come_from_the_url(server: Server, model: Path) -> None:
    answer = server.predict(picture(), "?conf=0.3&nms=0.9&classes=red&model=second")
    with Predictor.load(model, thresholds=Thresholds(conf=0.3, nms=0.9, classes="red")) as predictor:
        assert answer.json["detections"] == predictor(picture()).to_list()
    assert [one["class"] for one in answer.json["detections"]] == ["red"]
    assert answer.json["model"] == "second"


def test_a_form_with_one_picture_is_answered_like_the_picture(server: Server) -> None:
    body, kind = form(("street.jpg", picture()))
    assert server.predict(body, kind=kind).json["detections"] == server.predict(picture()).json["detections"]


def test_many_pictures_give_a_line_each_in_their_order(server: Server, predictor: Predictor) -> None:
    pictures = [(f"{seed}.jpg", picture(seed)) for seed in range(4)]
    body, kind = form(*pictures[:2], ("broken.jpg", b"no picture"), *pictures[2:])
    answer = server.predict(body, kind=kind)
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [line["source"] for line in lines] == ["0.jpg", "1.jpg", "broken.jpg", "2.jpg", "3.jpg"]
    assert "error" in lines.pop(2)
    assert [line["detections"] for line in lines] == [predictor(data).to_list() for _, data in pictures]


def test_a_drawn_picture_on_request(server: Server) -> None:
    answer = server.predict(picture(), accept="image/jpeg")
    assert answer.headers["content-type"] == "image/jpeg"
    drawn = cv2.imdecode(np.frombuffer(answer.body, np.uint8), cv2.IMREAD_COLOR)
    plain = cv2.imdecode(np.frombuffer(picture(), np.uint8), cv2.IMREAD_COLOR)
    assert drawn.shape == plain.shape
    assert (drawn != plain).any()


def test_models_are_listed_with_their_classes_and_size(server: Server) -> None:
    models = {one["name"]: one for one in server.get("/models").json["models"]}
    assert list(models) == ["toy", "second"]
    assert models["toy"]["classes"] == list(toy_spec().names)
    assert models["toy"]["size_hw"] == [64, 64]
    assert models["toy"]["runtime"] == "onnxruntime"
    assert models["toy"]["ready"] is True


def test_probes_say_that_it_lives_and_is_ready(server: Server) -> None:
    assert server.get("/healthz/live").status == 200
    assert server.get("/healthz/ready").json == {"ready": True}


def test_metrics_count_requests_and_show_the_workers(server: Server) -> None:
    before = server.metric("boxwright_request_seconds_count")
    server.predict(picture())
    assert server.metric("boxwright_request_seconds_count") >= before + 1
    assert len(server.workers()) == 2
    assert server.metric("boxwright_worker_resident_bytes") > 0
