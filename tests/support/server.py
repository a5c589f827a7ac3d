"""A real server process on the loopback, and requests to it."""

import http.client
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

TOKEN = "a-token-for-tests-only"


class Reply(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """`boxwright serve`, or another verb, in a process of its own; use it as a `with` block."""

    def __init__(
        self,
        *words: object,
        log: Path,
        env: Mapping[str, str] | None = None,
        within_s: float = 120,
        verb: str = "serve",
    ) -> None:
        self._log = log.open("wb")
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, "-m", "boxwright", verb, "--port", "0", "--json", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        )
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], within_s)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            self.__exit__()
            raise AssertionError(f"the server did not start: {log.read_text()}")
        self.url: str = json.loads(line)["url"]
        self.page: str = json.loads(line)["page"]
        self.port = int(self.url.rpartition(":")[2])

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Return the answer to one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        """Return the answer to a GET."""
        return self.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def predict(self, body: bytes, query: str = "", kind: str = "image/jpeg", **headers: str) -> Reply:
        """Return the answer to a picture."""
        more = {k.replace("_", "-"): v for k, v in headers.items()}
        return self.request("POST", f"/predict{query}", body, {"content-type": kind, **more})

    def workers(self) -> list[int]:
        """Return the process ids of the workers, from `/metrics`."""
        lines = self.get("/metrics", authorization=f"Bearer {TOKEN}").body.decode().splitlines()
        return [int(line.split('pid="')[1].split('"')[0]) for line in lines if "resident_bytes{" in line]

    def metric(self, name: str) -> float:
        """Return the sum of a metric over all labels."""
        lines = self.get("/metrics", authorization=f"Bearer {TOKEN}").body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def wait_for(self, metric: str, value: float, *, within_s: float = 60.0) -> None:
        """Wait until a metric has a value."""
        end_s = time.monotonic() + within_s
        while self.metric(metric) != value:
            assert time.monotonic() < end_s, f"{metric} is {self.metric(metric)}, not {value}"
            time.sleep(0.05)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(100)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()


def form(*pictures: tuple[str, bytes], boundary: str = "x-boundary") -> tuple[bytes, str]:
    """Return the body and the content type of a multipart form."""
    parts = b"".join(
        b'--%b\r\nContent-Disposition: form-data; name="image"; filename="%b"\r\nContent-Type: image/jpeg\r\n\r\n%b\r\n'
        % (boundary.encode(), name.encode(), data)
        for name, data in pictures
    )
    return parts + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"
