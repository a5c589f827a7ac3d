"""`boxwright serve --engine ray`: a real Ray Serve on this machine."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import pytest
from support.clusters import RayCluster
from support.fixtures import Command
from support.scenes import scene
from support.server import TOKEN, Server
from support.toy import save_toy_onnx, toy_spec

from boxwright import Predictor

pytest.importorskip("uvicorn")
pytest.importorskip("ray.serve", reason="ray[serve] is not installed", exc_type=ImportError)
pytestmark = [pytest.mark.engines, pytest.mark.xdist_group("serve-ray")]

PICTURE = cv2.imencode(".png", scene(("red", 1, 1), ("blue", 6, 6)))[1].tobytes()
# Ray gives a proxy five seconds to start, which a busy machine does not have.
PATIENT = {"BOXWRIGHT_TOKEN": TOKEN, "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60"}
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy_onnx(tmp_path_factory.mktemp("models") / "toy.onnx", spec=toy_spec())


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("logs") / "serve.log"
    words = (model, "--engine", "ray", "--address", "local", "--workers", 1)
    with Server(*words, log=log, env=PATIENT, within_s=280) as one:
        yield one
    assert one.process.returncode == 0
    assert "Traceback" not in log.read_text()


def test_a_replica_answers_as_predictor_does(server: Server, model: Path) -> None:
    with Predictor.load(model) as predictor:
        expected = predictor(PICTURE).to_list()
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: server.predict(PICTURE, **BEARER), range(12)))
    assert [one for one in answers if one.status != 200] == []
    assert [one.json["detections"] for one in answers] == [expected] * 12


def test_the_app_is_the_same_one(server: Server) -> None:
    assert server.predict(PICTURE).status == 401
    assert server.predict(b"no picture", **BEARER).status == 422
    assert server.get("/healthz/ready").json == {"ready": True}
    assert server.get("/v2/models/toy/ready", **BEARER).status == 200
    assert b"<!doctype html>" in server.get("/").body.lower()[:100]


def test_its_metrics_name_the_replica_and_its_admin_path_says_what_to_do(server: Server) -> None:
    text = server.get("/metrics", **BEARER).body.decode()
    assert text.count("replica=") == len([line for line in text.splitlines() if not line.startswith("#")])
    answer = server.request("POST", "/admin/models", b"", BEARER)
    assert answer.status == 409
    assert "SIGHUP" in answer.json["error"]


def test_sighup_loads_the_models_of_all_replicas_again(server: Server, model: Path) -> None:
    save_toy_onnx(model.with_name("new.onnx"), spec=toy_spec(names=("a", "b", "c"))).rename(model)
    server.process.send_signal(signal.SIGHUP)
    end_s = time.monotonic() + 60
    while (found := server.get("/models", **BEARER).json["models"][0])["version"] != 2:
        assert time.monotonic() < end_s
        time.sleep(0.1)
    assert found["classes"] == ["a", "b", "c"]


@pytest.mark.more
def test_replicas_are_added_while_requests_wait(ray_cluster: RayCluster, model: Path, tmp_path: Path) -> None:
    """Three machines; the worker of the first one is stopped, so that its requests wait."""
    words = (model, "--engine", "ray", "--address", ray_cluster.address, "--replicas", "1:3", "--workers", 1)
    patience = ("--max-wait", 200_000, "--timeout", 200)
    with Server(*words, *patience, log=tmp_path / "log", env=PATIENT) as server, ThreadPoolExecutor(12) as threads:
        (worker,) = server.workers()
        os.kill(worker, signal.SIGSTOP)
        try:
            waiting = [threads.submit(server.predict, PICTURE, **BEARER) for _ in range(12)]
            end_s = time.monotonic() + 150
            while set(server.workers()) <= {worker}:  # of the replica that answers
                assert time.monotonic() < end_s, "the queue was long, but no replica was added"
                time.sleep(0.2)
        finally:
            os.kill(worker, signal.SIGCONT)
        assert {one.result().status for one in waiting} == {200}


def test_options_of_a_cluster_need_the_engine(boxwright: Command, model: Path) -> None:
    done = boxwright("serve", str(model), "--replicas", "2")
    assert done.code == 2
    assert "does nothing without --engine ray" in done.err
    assert boxwright("serve", str(model), "--engine", "ray", "--replicas", "3:1").code == 2
