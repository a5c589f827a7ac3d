"""One worker process, as the server sees it: its connection, and the requests that it has."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from boxwright.core.environment import MAX_PIXELS
from boxwright.core.errors import CheckpointError, WorkerError
from boxwright.core.exit_status import describe_exit
from boxwright.core.log import get_logger
from boxwright.serve.wire import Head, Unpacker, pack, socket_pair

_log = get_logger(__name__)
_ENDING_S = 5.0


class WorkerProcess(asyncio.Protocol):
    """A worker from its start to its end; another one takes its place then."""

    def __init__(
        self,
        number: int,
        values: dict[str, Any],
        *,
        max_pixels: int,
        answered: Callable[[Head, bytes], None],
        lost: Callable[["WorkerProcess"], None],
    ) -> None:
        """Describe a worker.

        Args:
            number: its number in the plan.
            values: what it is started with.
            max_pixels: the largest picture.
            answered: called with every answer.
            lost: called when the process has died after it was ready.
        """
        self.number = number
        self.pid = 0
        self.ready = False
        self.busy_with: set[int] = set()
        self._values, self._max_pixels = values, max_pixels
        self._answered, self._lost = answered, lost
        self._unpacker = Unpacker()
        self._closing = False

    async def start(self) -> dict[str, Any]:
        """Start the process, wait until it is ready, and return what it says about its model.

        Raises:
            CheckpointError: it can't load the model.
            WorkerError: it died, or the system has no room for another process.
        """
        loop = asyncio.get_running_loop()
        self._first: asyncio.Future[Head] = loop.create_future()
        self._ended: asyncio.Future[int] = loop.create_future()
        try:
            # Not in the event loop: starting a process takes milliseconds. It can't be cancelled halfway either.
            self._process, ours = await asyncio.shield(asyncio.to_thread(self._spawn))
        except OSError as error:
            raise WorkerError(f"A worker of {self._values['name']!r} can't be started: {error.strerror}.") from error
        self.pid = self._process.pid
        self._transport, _ = await loop.create_connection(lambda: self, sock=ours)
        try:
            first = await self._first
        except BaseException:
            await self.end()
            raise
        if "error" in first:
            await self.end()
            raise CheckpointError(f"The model {self._values['name']!r} can't be served: {first['error']}")
        self.ready = True
        return dict(first["ready"])

    def _spawn(self) -> tuple["subprocess.Popen[bytes]", socket.socket]:
        ours, theirs = socket_pair()
        with theirs:
            values = json.dumps(self._values | {"connection": theirs.fileno()})
            command = [sys.executable, "-P", "-m", "boxwright.serve.worker", values]
            env = os.environ | {MAX_PIXELS: str(self._max_pixels)}
            out = sys.stderr.fileno()
            try:
                process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=out, env=env
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        return process, ours

    def send(self, head: Head, body: bytes) -> None:
        """Send a request."""
        self.busy_with.add(head["id"])
        self._transport.writelines([pack(head, len(body)), body])

    def data_received(self, data: bytes) -> None:
        """Take answers, or the first message."""
        for head, body in self._unpacker.feed(data):
            if "id" in head:
                self.busy_with.discard(head["id"])
                self._answered(head, body)
            elif not self._first.done():
                self._first.set_result(head)

    def connection_lost(self, _error: Exception | None) -> None:
        """Notice that the process has ended."""
        was_ready, self.ready = self.ready, False
        self._bury = asyncio.get_running_loop().create_task(self._wait())
        if was_ready and not self._closing:
            self._lost(self)

    def kill_if_hanging(self, number: int) -> None:
        """Kill the process if it still has a request."""
        if number in self.busy_with and self.ready:
            _log.warning("The worker %d hangs on a request and is replaced.", self.pid)
            self._process.kill()

    async def end(self) -> None:
        """Close the connection, upon which the process exits, and wait for that."""
        self._closing = True
        self._transport.close()
        await asyncio.shield(self._ended)

    async def _wait(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, _ENDING_S)
        if self._process.returncode is None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        how, why = describe_exit(self._process.returncode)
        text = f"A worker of {self._values['name']!r} (process {self.pid}) {how}. {why}."
        if not self._first.done():
            self._first.set_exception(WorkerError(text))
        elif not self._closing:
            _log.warning("%s It is replaced.", text)
        self._ended.set_result(self._process.returncode)
