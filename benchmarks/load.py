"""python benchmarks/load.py SPEC.json: requests to a server on the loopback, as fast as answers come or at a rate.

For serving.py, which starts it as a process of its own, so that its work does not disturb what is measured. It prints a
line of JSON. The specification:

    port, requests    files with whole HTTP requests, which are sent in turns
    answers           (optional) files with how the body of each answer must begin
    clients           connections
    count or seconds  when to end
    rate, seed        (optional) arrivals per second, Poisson; else each client asks again when it has its answer
"""

import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_PAUSE_S = 0.02  # of a client that was refused


class Connection(asyncio.Protocol):
    """A client: one request at a time."""

    def __init__(self, load: "Load", number: int) -> None:
        self.load, self.number = load, number
        self.transport: Any = None
        self.asked: int | None = None  # the request that waits for its answer
        self.since = 0.0
        self._data = bytearray()
        self._head, self._end = 0, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say that this client is free."""
        self.transport = transport
        self.load.free(self)

    def ask(self, which: int, since: float) -> None:
        """Send a request."""
        self.asked, self.since = which, since
        self.transport.write(self.load.requests[which])

    def data_received(self, data: bytes) -> None:
        """Take a piece of the answer."""
        self._data += data
        if not self._end:
            head = self._data.find(b"\r\n\r\n")
            if head < 0:
                return
            length = _LENGTH.search(self._data, 0, head + 2)
            self._head, self._end = head + 4, head + 4 + (int(length[1]) if length else 0)
        if len(self._data) >= self._end:
            status, body = int(self._data[9:12]), bytes(self._data[self._head : self._end])
            self._data.clear()
            self._end = 0
            self.load.answered(self, status, body)

    def connection_lost(self, _error: Exception | None) -> None:
        """Count the connection as lost."""
        self.load.lost(self)


class Load:
    """All clients of one run, and what they saw."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.requests = [Path(name).read_bytes() for name in spec["requests"]]
        self.answers = [Path(name).read_bytes() for name in spec.get("answers", [])]
        self.statuses: Counter[str] = Counter()
        self.failures: Counter[int] = Counter()  # by client: no answer, or one of the server's own faults
        self.taken_ms: list[float] = []
        self.wrong = self.asked = 0
        self.idle: list[Connection] = []
        self.is_open = bool(spec.get("rate"))
        self.left = set(range(spec["clients"]))
        self.ended = asyncio.Event()
        self.start_s = time.perf_counter()

    @property
    def is_over(self) -> bool:
        """Whether no more is asked."""
        if "count" in self.spec:
            return self.asked >= self.spec["count"]
        return time.perf_counter() - self.start_s >= self.spec["seconds"]

    def free(self, one: Connection) -> None:
        """Use a connection that has nothing to do."""
        if self.is_over:
            self._finish(one.number)
            one.transport.close()
        elif self.is_open:
            self.idle.append(one)
        else:
            self.ask(one, time.perf_counter())

    def ask(self, one: Connection, since: float) -> None:
        """Let a client ask for the next picture."""
        self.asked += 1
        one.ask(self.asked % len(self.requests), since)

    def answered(self, one: Connection, status: int, body: bytes) -> None:
        """Count an answer."""
        which, one.asked = one.asked, None
        self.statuses[str(status)] += 1
        if status == 200:
            self.taken_ms.append((time.perf_counter() - one.since) * 1000)
            if self.answers and which is not None and not body.startswith(self.answers[which]):
                self.wrong += 1
        elif status >= 500:
            self.failures[one.number] += 1
        if status == 200 or self.is_open:
            self.free(one)
        else:
            asyncio.get_running_loop().call_later(_PAUSE_S, self.free, one)

    def lost(self, one: Connection) -> None:
        """Count a connection that was closed before its answer, and open it again."""
        if one in self.idle:
            self.idle.remove(one)
        if one.asked is not None:
            self.failures[one.number] += 1
            self.statuses["closed"] += 1
        self._connect_again(one.number)

    async def connect(self, number: int) -> None:
        """Open a client's connection."""
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: Connection(self, number), "127.0.0.1", self.spec["port"])
        except OSError:
            self.failures[number] += 1
            self._connect_again(number)

    def _connect_again(self, number: int) -> None:
        if self.is_over:
            self._finish(number)
        else:
            asyncio.get_running_loop().call_later(_PAUSE_S, lambda: asyncio.ensure_future(self.connect(number)))

    def _finish(self, number: int) -> None:
        self.left.discard(number)
        if not self.left:
            self.ended.set()

    async def run(self) -> dict[str, Any]:
        """Return what was seen."""
        self.start_s = time.perf_counter()
        if self.is_open:
            await asyncio.gather(*(self.connect(number) for number in range(self.spec["clients"])))
            await self._arrive()
            self.ended.set()
        else:
            await asyncio.gather(*(self.connect(number) for number in range(self.spec["clients"])))
        await self.ended.wait()
        return {
            "seconds": time.perf_counter() - self.start_s,
            "statuses": self.statuses,
            "failures": sum(self.failures.values()),
            "worst_client": max(self.failures.values(), default=0),
            "wrong": self.wrong,
            "taken_ms": [round(value, 3) for value in self.taken_ms],
        }

    async def _arrive(self) -> None:
        """Ask at random moments; a request for which no connection is free counts as refused."""
        chance = random.Random(self.spec.get("seed", 0))
        due = self.start_s = time.perf_counter()
        while not self.is_over:
            due += chance.expovariate(self.spec["rate"])
            if (pause := due - time.perf_counter()) > 0:
                await asyncio.sleep(pause)
            if self.idle:
                self.ask(self.idle.pop(), due)
            else:
                self.statuses["no connection"] += 1
        await asyncio.sleep(1.0)  # for the last answers


if __name__ == "__main__":
    print(json.dumps(asyncio.run(Load(json.loads(Path(sys.argv[1]).read_text())).run())))
