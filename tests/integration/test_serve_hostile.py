"""A server that gets broken, enormous and slow requests answers each with the right 4xx, and works on."""

import io
import json
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image
from support.server import TOKEN, Server, form
from support.toy import save_toy_onnx, toy_spec

pytest.importorskip("uvicorn")
MB = 1 << 20


def encode(size_wh: tuple[int, int] = (64, 48), kind: str = "JPEG", **options: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((size_wh[1], size_wh[0], 3), 90, np.uint8)).save(out, kind, **options)
    return out.getvalue()


JPEG, PNG = encode(), encode(kind="PNG")


def lying_png(width: int, height: int) -> bytes:
    """Return a PNG whose header claims a size, with pixels for one row."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" + bytes(3 * min(width, 1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def patched_jpeg(height: int, width: int) -> bytes:
    """Return a small JPEG whose frame header claims another size."""
    at = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:at] + struct.pack(">HH", height, width) + JPEG[at + 4 :]


BOMB = encode((6000, 6000), "PNG", compress_level=9)  # 100 kB, 36 million pixels
PROGRESSIVE = encode((4000, 4000), progressive=True, quality=5)

PICTURES: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", 422),
    "text": (b"hello", 422),
    "zeros": (bytes(10_000), 422),
    "a cut off JPEG": (JPEG[: len(JPEG) // 2], 422),
    "a JPEG of its header alone": (JPEG[:20], 422),
    "a cut off PNG": (PNG[:40], 422),
    "a PNG bomb": (BOMB, 413),
    "a PNG that claims 2^31 x 2^31": (lying_png(2**31 - 1, 2**31 - 1), 413),
    "a PNG that claims 5000 x 5000 and has a row": (lying_png(5000, 5000), 422),
    "a JPEG that claims 65535 x 65535": (patched_jpeg(65535, 65535), 413),
    "a JPEG that claims no height": (patched_jpeg(0, 64), 422),
    "a BMP that claims 100000 x 100000": (
        b"BM" + bytes(8) + b"\x36\0\0\0\x28\0\0\0" + struct.pack("<ii", 100_000, 100_000) + b"\1\0\x18\0" + bytes(24),
        413,
    ),
    "a GIF header": (b"GIF89a" + struct.pack("<HH", 60000, 60000) + bytes(10), 413),
    "a TIFF without a directory": (b"II*\0\xff\xff\xff\x7f", 422),
    "a WebP that claims 16384 x 16384": (
        b"RIFF\x64\0\0\0WEBPVP8X\x0a\0\0\0" + bytes(4) + b"\xff\x3f\0\xff\x3f\0" + bytes(60), 413
    ),
    "an SVG with a link": (b'<svg xmlns="http://www.w3.org/2000/svg"><image href="http://127.0.0.1/"/></svg>', 422),
    "a URL": (b"http://169.254.169.254/latest/meta-data/", 422),
    "a path": (b"/etc/passwd", 422),
}  # fmt: skip

REQUESTS: dict[str, tuple[str, str, bytes, dict[str, str], int]] = {
    "an unknown option": ("POST", "/predict?url=http://localhost/", JPEG, {}, 400),
    "a score above 1": ("POST", "/predict?conf=2", JPEG, {}, 400),
    "a score that is no number": ("POST", "/predict?conf=nan", JPEG, {}, 400),
    "an unknown class": ("POST", "/predict?classes=unicorn", JPEG, {}, 400),
    "an unknown model": ("POST", "/predict?model=../../etc/passwd", JPEG, {}, 404),
    "JSON instead of a picture": ("POST", "/predict", b'{"url": "x"}', {"content-type": "application/json"}, 415),
    "a compressed body": ("POST", "/predict", zlib.compress(JPEG), {"content-encoding": "gzip"}, 415),
    "a form without a boundary": ("POST", "/predict", JPEG, {"content-type": "multipart/form-data"}, 400),
    "a form that is none": ("POST", "/predict", JPEG, {"content-type": "multipart/form-data; boundary=x"}, 400),
    "a form without its end": ("POST", "/predict", form(("a", JPEG))[0][:-30], {"content-type": form()[1]}, 400),
    "a form without pictures": ("POST", "/predict", form()[0], {"content-type": form()[1]}, 400),
    "a form with a thousand pictures": (
        "POST", "/predict", form(*[("a", b"x")] * 1000)[0], {"content-type": form()[1]}, 413
    ),
    "a form with an endless header": (
        "POST", "/predict", b"--x\r\nA: " + b"a" * 100_000, {"content-type": "multipart/form-data; boundary=x"}, 400
    ),
    "GET on /predict": ("GET", "/predict", b"", {}, 405),
    "a path that climbs": ("GET", "/../../../etc/passwd", b"", {}, 404),
    "a path that climbs in escapes": ("GET", "/%2e%2e/%2e%2e/etc/passwd", b"", {}, 404),
    "the name of another host": ("GET", "/models", b"", {"host": "rebound.example"}, 421),
    "a page of another site": ("POST", "/predict", JPEG, {"origin": "https://evil.example"}, 403),
    "an unknown origin": ("POST", "/predict", JPEG, {"origin": "null"}, 403),
    "admin without a token": ("POST", "/admin/models", b"{}", {}, 403),
    "inference without JSON": ("POST", "/v2/models/toy/infer", b"hello", {}, 400),
    "inference with deep JSON": ("POST", "/v2/models/toy/infer", b"[" * 100_000, {}, 400),
    "inference with a header longer than the body": (
        "POST", "/v2/models/toy/infer", b"{}", {"inference-header-content-length": "99"}, 400
    ),
    "an input whose name is a list": ("POST", "/v2/models/toy/infer", b'{"inputs":[{"name":[]}]}', {}, 400),
    "an output whose name is an object": (
        "POST", "/v2/models/toy/infer",
        b'{"inputs":[{"name":"pixels","datatype":"UINT8","shape":[1,1,1,3],"data":[0,0,0]}],"outputs":[{"name":{}}]}',
        {}, 400,
    ),
    "inference with a shape of 2^60": (
        "POST", "/v2/models/toy/infer",
        b'{"inputs":[{"name":"pixels","datatype":"UINT8","shape":[1,1073741824,1073741824,3],"data":[]}]}', {}, 400,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = save_toy_onnx(tmp_path_factory.mktemp("models") / "toy.onnx", spec=toy_spec())
    log = tmp_path_factory.mktemp("logs") / "serve.log"
    with Server(model, "--workers", "1", log=log) as one:
        one.predict(JPEG)
        yield one


def memory(server: Server) -> int:
    """Return the resident bytes of the server and its workers."""
    family = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children()]
    return sum(one.memory_info().rss for one in family)


@pytest.fixture(autouse=True)
def _works_on(server: Server) -> Iterator[None]:
    workers, before = server.workers(), memory(server)
    yield
    assert server.predict(JPEG).status == 200
    assert server.workers() == workers
    assert memory(server) - before < 300 * MB


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_that_is_none_is_the_senders_fault(server: Server, name: str) -> None:
    data, status = PICTURES[name]
    answer = server.predict(data)
    assert answer.status == status
    assert list(answer.json) == ["error"]


@pytest.mark.parametrize("name", REQUESTS)
def test_a_wrong_request_is_the_senders_fault(server: Server, name: str) -> None:
    method, path, body, headers, status = REQUESTS[name]
    answer = server.request(method, path, body, headers)
    assert answer.status == status
    assert list(answer.json) == ["error"]


def test_a_large_progressive_picture_stays_within_the_memory_of_a_worker(server: Server) -> None:
    assert server.predict(PROGRESSIVE).status == 200


def talk(server: Server, write: Callable[[socket.socket], None]) -> bytes:
    """Return all that the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            write(connection)
        received = b""
        while True:
            try:
                piece = connection.recv(65536)
            except ConnectionResetError:
                return received
            if not piece:
                return received
            received += piece


def test_a_body_of_a_gigabyte_is_refused_by_its_length(server: Server) -> None:
    def write(connection: socket.socket) -> None:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1073741824\r\n\r\n")
        for _ in range(1024):
            connection.sendall(bytes(MB))

    assert talk(server, write).startswith(b"HTTP/1.1 413")


def test_a_body_without_a_length_is_cut_off_at_the_limit(server: Server) -> None:
    def write(connection: socket.socket) -> None:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(1024):
            connection.sendall(b"100000\r\n" + bytes(MB) + b"\r\n")

    assert talk(server, write).startswith(b"HTTP/1.1 413")


def test_a_flood_of_headers_is_refused(server: Server) -> None:
    def write(connection: socket.socket) -> None:
        connection.sendall(b"GET /models HTTP/1.1\r\nHost: localhost\r\n")
        for number in range(100_000):
            connection.sendall(b"X-%d: %s\r\n" % (number, b"a" * 1000))

    assert talk(server, write).startswith(b"HTTP/1.1 431")


def test_an_endless_header_is_refused(server: Server) -> None:
    def write(connection: socket.socket) -> None:
        connection.sendall(b"GET /models HTTP/1.1\r\nX: ")
        for _ in range(100):
            connection.sendall(b"a" * MB)

    assert talk(server, write).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize(
    "text", [b"\0\1\2\3\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nA b: c\r\n\r\n", b"\x16\x03\x01"]
)
def test_what_is_not_http_is_refused(server: Server, text: bytes) -> None:
    answer = talk(server, lambda connection: (connection.sendall(text), connection.shutdown(socket.SHUT_WR))[0])
    assert answer.startswith(b"HTTP/1.1 400") or answer == b""


def test_two_lengths_are_refused(server: Server) -> None:
    text = (
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    assert talk(server, lambda connection: connection.sendall(text)).startswith(b"HTTP/1.1 400")


def test_slow_clients_do_not_hold_up_the_others(server: Server) -> None:
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    try:
        for number, one in enumerate(slow):
            one.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\n" if number % 2 else b"P")
            if number % 4 == 1:
                one.sendall(b"Content-Length: 1000\r\n\r\nabc")
        assert server.predict(JPEG).status == 200
    finally:
        for one in slow:
            one.close()


@pytest.mark.more
def test_a_client_that_is_too_slow_is_hung_up_on(server: Server) -> None:
    def write(connection: socket.socket) -> None:
        connection.sendall(b"GET /models HTTP/1.1\r\nHost: ")  # and then nothing

    start = time.monotonic()
    assert talk(server, write).startswith(b"HTTP/1.1 408")
    assert time.monotonic() - start < 25


def test_many_clients_that_leave_at_once_cost_nothing(server: Server) -> None:
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(JPEG)
            connection.sendall(head + JPEG)
    server.wait_for("boxwright_requests_running", 0)
    server.wait_for("boxwright_queue_length", 0)
    server.wait_for("boxwright_body_bytes", 0)


def test_a_server_with_a_token_wants_it_everywhere_but_for_probes(tmp_path: Path) -> None:
    model = save_toy_onnx(tmp_path / "toy.onnx", spec=toy_spec())
    with Server(model, "--workers", "1", log=tmp_path / "log", env={"BOXWRIGHT_TOKEN": TOKEN}) as server:
        assert server.predict(JPEG).status == 401
        assert server.predict(JPEG, authorization="Bearer wrong").status == 401
        assert server.predict(JPEG, authorization=f"Bearer {TOKEN}").status == 200
        for path in ("/models", "/metrics", "/v2", "/v2/models/toy"):
            assert server.get(path).status == 401
        for path in ("/healthz/live", "/healthz/ready", "/v2/health/ready"):
            assert server.get(path).status == 200
        assert server.request("POST", "/admin/models", b"{}").status == 401
        wrong = {"authorization": f"Bearer {TOKEN}"}
        for body in (b'{"path": "/etc"}', b'{"url": "http://x/"}', b"[]", b"{", b'{"name": 3}'):
            assert server.request("POST", "/admin/models", body, wrong).status == 400
        done = server.request("POST", "/admin/models", json.dumps({"name": "toy"}).encode(), wrong)
        assert done.json["version"] == 2
