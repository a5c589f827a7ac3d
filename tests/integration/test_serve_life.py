"""What a server does when workers die or hang, models change, clients leave, more arrives than it can do, or it ends.

A stopped worker (SIGSTOP) holds its requests for as long as a test wants.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import psutil
import pytest
from support.scenes import scene
from support.server import TOKEN, Reply, Server, form
from support.toy import save_toy_onnx, toy_spec

from boxwright import Predictor

pytest.importorskip("uvicorn")

PICTURE = cv2.imencode(".png", scene(("red", 1, 1), ("blue", 6, 6)))[1].tobytes()
BEARER = {"authorization": f"Bearer {TOKEN}"}
KIND = {"content-type": "image/png"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_toy_onnx(tmp_path / "toy.onnx", spec=toy_spec())


@pytest.fixture
def expected(model: Path) -> list[dict[str, Any]]:
    with Predictor.load(model) as predictor:
        return predictor(PICTURE).to_list()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def start(model: Path, *words: object) -> Server:
    return Server(
        model, "--workers", 1, *words, log=model.with_name("serve.log"), env={"BOXWRIGHT_TOKEN": TOKEN}
    )  # fmt: skip


def ask(server: Server) -> Reply:
    return server.request("POST", "/predict", PICTURE, {**KIND, **BEARER})


def reload(server: Server) -> Reply:
    return server.request("POST", "/admin/models", b"", BEARER)


def until(condition: Callable[[], Any], within_s: float = 60) -> Any:
    """Return the first true value of a condition."""
    end_s = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < end_s
        time.sleep(0.002)
    return value


@contextmanager
def stopped(server: Server) -> Iterator[int]:
    """Stop the only worker in this block."""
    (worker,) = server.workers()
    os.kill(worker, signal.SIGSTOP)
    try:
        yield worker
    finally:
        os.kill(worker, signal.SIGCONT)


def test_more_than_can_wait_is_refused_at_once_and_what_was_accepted_is_answered(
    model: Path, expected: list[dict[str, Any]], threads: ThreadPoolExecutor
) -> None:
    with start(model, "--max-wait", 0.001) as server:
        with stopped(server):
            accepted = [threads.submit(ask, server) for _ in range(2)]
            server.wait_for("boxwright_requests_running", 2)
            for _ in range(5):
                refused = ask(server)
                assert refused.status == 429
                assert int(refused.headers["retry-after"]) >= 1
                assert "Try again" in refused.json["error"]
            assert server.metric("boxwright_rejections_total") == 5
            many, kind = form(("a.png", PICTURE), ("b.png", PICTURE))
            assert server.request("POST", "/predict", many, {"content-type": kind, **BEARER}).status == 429
        assert [(one.result().status, one.result().json["detections"]) for one in accepted] == [(200, expected)] * 2
        assert ask(server).status == 200


def test_a_client_that_leaves_frees_its_place(model: Path, threads: ThreadPoolExecutor) -> None:
    with start(model, "--max-wait", 60_000) as server, stopped(server):
        first = [threads.submit(ask, server) for _ in range(2)]
        server.wait_for("boxwright_requests_running", 2)
        with socket.create_connection(("127.0.0.1", server.port)) as leaver:
            head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
            leaver.sendall(f"{head}Content-Length: {len(PICTURE)}\r\n\r\n".encode() + PICTURE)
            server.wait_for("boxwright_queue_length", 1)
        server.wait_for("boxwright_queue_length", 0)
        assert not any(one.done() for one in first)


def test_a_killed_worker_is_replaced_and_its_requests_are_answered(
    model: Path, expected: list[dict[str, Any]], threads: ThreadPoolExecutor
) -> None:
    with start(model) as server:
        (worker,) = server.workers()
        os.kill(worker, signal.SIGSTOP)
        waiting = [threads.submit(ask, server) for _ in range(3)]
        server.wait_for("boxwright_requests_running", 2)
        server.wait_for("boxwright_queue_length", 1)
        os.kill(worker, signal.SIGKILL)
        until(lambda: server.get("/healthz/ready").status == 503)
        assert server.get("/v2/health/ready").status == 503
        assert server.get("/healthz/live").status == 200
        until(lambda: server.get("/healthz/ready").status == 200)
        assert [one.result().json["detections"] for one in waiting] == [expected] * 3
        assert server.workers() != [worker]
        assert server.metric("boxwright_worker_restarts_total") == 1


@pytest.mark.more
def test_a_worker_that_hangs_is_replaced(model: Path) -> None:
    with start(model, "--timeout", 1) as server:
        (worker,) = server.workers()
        os.kill(worker, signal.SIGSTOP)
        assert ask(server).status == 504
        until(lambda: server.workers() not in ([], [worker]))
        assert ask(server).status == 200


def test_a_request_has_a_deadline(model: Path) -> None:
    with start(model, "--timeout", 0.3) as server:
        with stopped(server):
            answer = ask(server)
            assert answer.status == 504
            assert "0.3 s" in answer.json["error"]
        assert until(lambda: ask(server).status == 200)


@pytest.mark.more
def test_an_answer_may_take_longer_than_headers_may(
    model: Path, expected: list[dict[str, Any]], threads: ThreadPoolExecutor
) -> None:
    with start(model, "--timeout", 60) as server:
        with stopped(server):
            answer = threads.submit(ask, server)
            assert not wait([answer], timeout=12).done
        assert answer.result().json["detections"] == expected


class Load:
    """Clients that ask one request after the other until the block ends."""

    def __init__(self, server: Server, clients: int = 3) -> None:
        self.answers: list[Reply] = []
        self._server, self._ended = server, threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def _run(self) -> None:
        while not self._ended.is_set():
            self.answers.append(ask(self._server))

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


def check_reloads_under_load(model: Path, expected: list[dict[str, Any]], count: int) -> None:
    with start(model, "--max-wait", 30_000) as server:
        before = server.workers()
        with Load(server) as load:
            for number in range(count):
                assert reload(server).json["version"] == number + 2
        assert {one.status for one in load.answers} == {200}
        assert all(one.json["detections"] == expected for one in load.answers)
        assert not set(before) & set(server.workers())
        server_process = psutil.Process(server.process.pid)
        until(lambda: [child.pid for child in server_process.children()] == server.workers())


def test_reloading_under_load_fails_no_request(model: Path, expected: list[dict[str, Any]]) -> None:
    check_reloads_under_load(model, expected, 3)


def begin(client: socket.socket, path: str, body: bytes) -> None:
    """Send all of a request but its body, and wait until the server reads that."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n"
    client.sendall(f"{head}Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
    assert client.recv(100).startswith(b"HTTP/1.1 100")


def test_a_request_whose_body_is_on_its_way_while_the_model_changes_is_answered_by_the_old_one(model: Path) -> None:
    pixels = {"name": "pixels", "datatype": "UINT8", "shape": [1, 1, 1, 3], "data": [0, 0, 0]}
    text = json.dumps({"inputs": [pixels]}).encode()
    with (
        start(model) as server,
        socket.create_connection(("127.0.0.1", server.port)) as one,
        socket.create_connection(("127.0.0.1", server.port)) as other,
    ):
        before = server.workers()
        begin(one, "/predict", PICTURE)
        begin(other, "/v2/models/toy/infer", text)
        assert reload(server).json["version"] == 2
        one.sendall(PICTURE)
        other.sendall(text)
        assert one.recv(100).startswith(b"HTTP/1.1 200")
        with other.makefile("rb") as answer:
            assert b'"model_version": "1"' in answer.read()
        server_process = psutil.Process(server.process.pid)
        until(lambda: not {child.pid for child in server_process.children()} & set(before))


@pytest.mark.more
def test_many_reloads_under_load_fail_no_request(model: Path, expected: list[dict[str, Any]]) -> None:
    check_reloads_under_load(model, expected, 40)


@pytest.mark.more
def test_workers_killed_at_any_moment_under_load_cost_no_wrong_answer(
    model: Path, expected: list[dict[str, Any]]
) -> None:
    with start(model, "--max-wait", 30_000) as server:
        with Load(server) as load:
            for _ in range(10):
                asked = len(load.answers)
                os.kill(until(server.workers)[0], signal.SIGKILL)
                until(lambda: server.get("/healthz/ready").status == 503)
                until(lambda asked=asked: len(load.answers) > asked + 20)
        assert {one.status for one in load.answers} <= {200, 503}
        assert sum(one.status == 503 for one in load.answers) <= 10
        assert all(one.json["detections"] == expected for one in load.answers if one.status == 200)


def test_a_new_version_that_cannot_be_served_leaves_the_old_one(model: Path, expected: list[dict[str, Any]]) -> None:
    with start(model) as server:
        workers = server.workers()
        model.write_bytes(b"no model")
        answer = reload(server)
        assert answer.status == 422
        assert "stays at version 1" in answer.json["error"]
        assert ask(server).json["detections"] == expected
        assert server.workers() == workers


def test_sighup_loads_the_new_files_and_opens_the_log_again(model: Path) -> None:
    log = model.with_name("access.log")
    with start(model, "--access-log", log) as server:
        assert ask(server).status == 200
        log.rename(log.with_suffix(".old"))
        save_toy_onnx(model.with_name("new.onnx"), spec=toy_spec(names=("a", "b", "c"))).rename(model)
        server.process.send_signal(signal.SIGHUP)
        found = until(lambda: (one := server.get("/models", **BEARER).json["models"][0])["version"] == 2 and one)
        assert found["classes"] == ["a", "b", "c"]
        assert {one["class"] for one in ask(server).json["detections"]} == {"a", "c"}
    assert log.with_suffix(".old").read_text().count("/predict") == 1
    assert log.read_text().count("/predict") == 1


def test_sigterm_answers_what_was_accepted_then_ends(
    model: Path, expected: list[dict[str, Any]], threads: ThreadPoolExecutor
) -> None:
    with start(model) as server:
        with stopped(server):
            waiting: list[Future[Reply]] = [threads.submit(ask, server) for _ in range(3)]
            server.wait_for("boxwright_queue_length", 1)
            server.process.terminate()
            until(lambda: is_refused(server.port))
        assert [one.result().json["detections"] for one in waiting] == [expected] * 3
        assert server.process.wait(30) == 0


def is_refused(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port)):
            return False
    except ConnectionRefusedError:
        return True


def test_a_killed_server_leaves_no_worker_behind(model: Path) -> None:
    with start(model) as server:
        (worker,) = server.workers()
        server.process.kill()
        server.process.wait()
        until(lambda: not psutil.pid_exists(worker))


def test_it_answers_probes_before_the_models_are_there(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = object.__new__(Server)
    server.port = port
    words = [sys.executable, "-m", "boxwright", "serve", str(model), "--port", str(port), "--workers", "1"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        until(lambda: not is_refused(port))
        assert server.get("/healthz/live").status == 200
        early = server.get("/healthz/ready")
        refused = server.predict(PICTURE)
        assert (early.status, early.json) == (503, {"ready": False})
        assert refused.status == 503
        assert refused.headers["retry-after"] == "1"
        process.send_signal(signal.SIGHUP)  # loads them again, as soon as they are there
        until(lambda: server.get("/models").json["models"][0]["version"] == 2)
        assert server.get("/healthz/ready").status == 200
        assert server.predict(PICTURE).status == 200
    finally:
        process.terminate()
        assert process.wait(30) == 0
