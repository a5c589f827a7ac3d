"""Connections between a driver and its agents on other machines; both ends prove that they have the key."""

import hmac
import queue
import secrets
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from boxwright.core.errors import WorkerError
from boxwright.core.log import get_logger

_SILENCE_S = 30  # a machine without power closes no connection; after this time it counts as lost
_REFUSALS = (AuthenticationError, AssertionError, EOFError, OSError)  # AssertionError: not a challenge (Python 3.11)
_SEND_FILES = "send the files"
_CHUNK = 8 << 20
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """Where a driver listens, and the key that an agent must have. The engine carries it to the agents."""

    host: str
    port: int
    key: bytes = field(repr=False)


class Listener:
    """Accepts agents that have the key, each in its own thread, so that a silent client can't block the others.

    Attributes:
        invitation: what agents need to connect.
        files: sent to agents that ask for them.
    """

    def __init__(self, host: str, *, bind: str | None = None) -> None:
        """Listen on a free port.

        Args:
            host: the address or name under which agents reach this machine.
            bind: the address to listen on, if it is a different one.
        """
        self.files: Sequence[Path] = ()
        address = host if bind is None else bind
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._server = socket.create_server((address, 0), family=family, backlog=1024)
        self.invitation = Invitation(host=host, port=int(self._server.getsockname()[1]), key=secrets.token_bytes(32))
        self._arrived: queue.SimpleQueue[tuple[Connection, Any]] = queue.SimpleQueue()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def take(self, timeout_s: float) -> tuple[Connection, Any] | None:
        """Return the next agent's connection and its first message; None if none comes in time."""
        try:
            return self._arrived.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stop listening, and close the connections that were not taken."""
        self._closed = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._server.close()
        while arrived := self.take(0):
            arrived[0].close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, _ = self._server.accept()
                threading.Thread(target=self._admit, args=(sock,), daemon=True).start()
            except OSError:  # closed, the caller has left, or too many files are open
                time.sleep(0.1)

    def _admit(self, sock: socket.socket) -> None:
        # Only on this side: an agent must wait as long as it takes for a terminal that does not read its output.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_S * 1000)
        connection, key = _connect(sock), self.invitation.key
        try:
            deliver_challenge(connection, _derive(key, b"agent"))
            answer_challenge(connection, _derive(key, b"driver"))
            message = connection.recv()
            if message == _SEND_FILES:
                self._send_files(connection)
            else:
                self._arrived.put((connection, message))
        except _REFUSALS as error:
            connection.close()
            _log.debug("Closed a connection: %r", error)
        if self._closed:
            self.close()

    def _send_files(self, connection: Connection) -> None:
        with connection:
            for path in self.files:
                connection.send(path.name)
                with path.open("rb") as file:
                    while data := file.read(_CHUNK):
                        connection.send_bytes(data)
                connection.send_bytes(b"")
            connection.send(None)


def fetch_files(invitation: Invitation, folder: Path) -> None:
    """Write the driver's files into a folder.

    Raises:
        OSError: the driver is gone or can't read them, or there is no room for them.
    """
    connection, _ = call(invitation)
    with connection:
        connection.send(_SEND_FILES)
        try:
            while (name := connection.recv()) is not None:
                with (folder / name).open("wb") as file:
                    while data := connection.recv_bytes():
                        file.write(data)
        except EOFError as error:
            raise OSError("the driver has closed the connection") from error


def call(invitation: Invitation) -> tuple[Connection, str]:
    """Return a connection to the driver, and this machine's address on it.

    Raises:
        WorkerError: the driver can't be reached, or what listens there does not have the key.
    """
    try:
        sock = socket.create_connection((invitation.host, invitation.port), timeout=_SILENCE_S)
        address = str(sock.getsockname()[0])
        connection = _connect(sock)
        try:
            answer_challenge(connection, _derive(invitation.key, b"agent"))
            deliver_challenge(connection, _derive(invitation.key, b"driver"))
        except BaseException:
            connection.close()
            raise
    except _REFUSALS as error:
        raise WorkerError(
            f"The driver at {invitation.host}:{invitation.port} can't be reached from {socket.gethostname()!r}: "
            f"{str(error) or type(error).__name__}. "
            "Workers must be able to open connections to the machine that starts them."
        ) from error
    return connection, address


def _connect(sock: socket.socket) -> Connection:
    """Return a connection over a socket that notices when the other machine is gone."""
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_S // 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENCE_S // 6)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    # For the handshake, and inside a message: callers wait for a message's first byte with `poll` or `wait`.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _SILENCE_S, 0))
    return Connection(sock.detach())


def _derive(key: bytes, role: bytes) -> bytes:
    """Return the key of one side's proofs, so that they can't be replayed as the other side's."""
    return hmac.digest(key, role, "sha256")
