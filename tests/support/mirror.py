"""A web server on the loopback that serves bytes, whole or in every way that goes wrong."""

import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Mirror:
    """What the server does; a test sets it up, and reads the requests afterwards.

    Attributes:
        files: bytes by path.
        redirects: address by path.
        cut_after: bytes after which each of the next answers is cut off, whatever its length says.
        extra_length: added to the announced length.
        ranges: whether a part of a file can be asked for.
        etag: of all files; empty for none.
        stall: send the header and nothing more until the server ends.
        piece: bytes per write.
        seen: path and Range header of every request.
    """

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)
    extra_length: int = 0
    ranges: bool = True
    etag: str = '"one"'
    stall: bool = False
    piece: int = 1 << 16
    announce: bool = True
    seen: list[tuple[str, str]] = field(default_factory=list)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    mirror: Mirror
    over: threading.Event

    def handle_error(self, *_: object) -> None:
        """Clients that leave are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        mirror = self.server.mirror
        path = "/" + self.path.split("://", 1)[-1].split("/", 1)[-1]  # a proxy is asked for the whole address
        mirror.seen.append((self.path, self.headers.get("Range", "")))
        if path in mirror.redirects:
            self.send_response(302)
            self.send_header("Location", mirror.redirects[path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if path not in mirror.files:
            self.send_error(404)
            return
        data, start = mirror.files[path], 0
        asked = self.headers.get("Range", "")
        if asked and mirror.ranges and self.headers.get("If-Range", mirror.etag) == mirror.etag:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if mirror.announce:
            self.send_header("Content-Length", str(len(data) - start + mirror.extra_length))
        if mirror.etag:
            self.send_header("ETag", mirror.etag)
        self.end_headers()
        if mirror.stall:
            self.server.over.wait()
            return
        rest = data[start:]
        if mirror.cut_after:
            rest = rest[: mirror.cut_after.pop(0)]
        for at in range(0, len(rest), mirror.piece):
            self.wfile.write(rest[at : at + mirror.piece])

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serve_files(certificate: Path | None = None) -> Iterator[Mirror]:
    """Yield a running server; with a certificate (and its key in one file) it speaks https."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.mirror, server.over = Mirror(), threading.Event()
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    server.mirror.address = f"{scheme}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.mirror
    finally:
        server.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def make_certificate(path: Path) -> Path:
    """Write a certificate for 127.0.0.1 and its key."""
    key = path.with_suffix(".key")
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(path),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + key.read_bytes())
    return path
