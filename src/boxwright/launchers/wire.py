"""Messages between a driver and its agents on other machines, over sockets that know each other by a secret key."""

import hmac
import pickle
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from boxwright.core.errors import WorkerError

_NONCE = 32
_DIGEST = 32
_HEAD = 8
_CHUNK = 1 << 20
_HANDSHAKE_S = 30.0
_SILENCE_S = 30  # a machine that lost its power sends no word; after so long it counts as gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """Where a driver listens, and the key that an agent must have. The engine carries it to the agents."""

    host: str
    port: int
    key: bytes = field(repr=False)


class Channel:
    """One end of a connection: whole messages in, whole messages out. A message is anything that pickles."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected socket."""
        self._sock = sock
        self._buffer = bytearray()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_S // 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENCE_S // 6)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_S * 1000)

    @property
    def own_address(self) -> str:
        """The address that this end is reached by from the other."""
        return str(self._sock.getsockname()[0])

    def fileno(self) -> int:
        """Return the socket's descriptor, for `selectors`."""
        return self._sock.fileno()

    def send(self, message: object) -> None:
        """Send one message, waiting until the other end has room for it.

        Raises:
            OSError: the other end is gone.
        """
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self.send_raw(len(data).to_bytes(_HEAD, "big") + data)

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._sock.sendall(data)

    def fill(self) -> None:
        """Read once what has come.

        Raises:
            EOFError: the other end has closed, or is gone.
        """
        try:
            data = self._sock.recv(_CHUNK)
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError(str(error)) from error
        if not data:
            raise EOFError("The other end has closed.")
        self._buffer += data

    def take_raw(self, count: int) -> bytes | None:
        """Return the next bytes that have come; None if there are not yet that many."""
        if len(self._buffer) < count:
            return None
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def take(self) -> Iterator[Any]:
        """Yield the whole messages that have come."""
        while len(self._buffer) >= _HEAD:
            end = _HEAD + int.from_bytes(self._buffer[:_HEAD], "big")
            if len(self._buffer) < end:
                return
            data = bytes(memoryview(self._buffer)[_HEAD:end])
            del self._buffer[:end]
            yield pickle.loads(data)  # only after the handshake: whoever sends it has the key

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._sock.close()


class Listener:
    """Where agents call: it lets in only those with the key. Nothing in it ever waits for a stranger."""

    def __init__(self, host: str, *, bind: str | None = None) -> None:
        """Listen on a free port.

        Args:
            host: the address or name that agents find this machine by.
            bind: the address to listen on, if another.
        """
        self._server = _listen(host if bind is None else bind)
        self._key = secrets.token_bytes(_NONCE)
        self.invitation = Invitation(host=host, port=int(self._server.getsockname()[1]), key=self._key)
        self._nonces: dict[Channel, bytes] = {}

    def fileno(self) -> int:
        """Return the socket's descriptor, for `selectors`."""
        return self._server.fileno()

    def greet(self) -> Channel:
        """Return the connection of somebody who called, still a stranger: `admit` decides."""
        sock, _ = self._server.accept()
        channel = Channel(sock)
        self._nonces[channel] = secrets.token_bytes(_NONCE)
        with suppress(OSError):
            channel.send_raw(self._nonces[channel])
        return channel

    def admit(self, channel: Channel) -> bool:
        """Return whether a caller has shown the key by now.

        Raises:
            PermissionError: it has shown a wrong one.
        """
        if channel not in self._nonces:
            return True
        answer = channel.take_raw(_DIGEST + _NONCE)
        if answer is None:
            return False
        nonce = self._nonces.pop(channel)
        if not hmac.compare_digest(answer[:_DIGEST], _sign(self._key, b"agent", nonce)):
            raise PermissionError("A caller without the key was turned away.")
        channel.send_raw(_sign(self._key, b"driver", answer[_DIGEST:]))
        return True

    def close(self) -> None:
        """Stop listening."""
        self._server.close()


def call(invitation: Invitation) -> Channel:
    """Return a connection to the driver, each end sure of the other.

    Raises:
        WorkerError: nobody with the key is there.
    """
    try:
        sock = socket.create_connection((invitation.host, invitation.port), timeout=_HANDSHAKE_S)
        channel = Channel(sock)
        with _closed_on_error(channel):
            nonce = _receive(channel, _NONCE)
            own = secrets.token_bytes(_NONCE)
            channel.send_raw(_sign(invitation.key, b"agent", nonce) + own)
            if not hmac.compare_digest(_receive(channel, _DIGEST), _sign(invitation.key, b"driver", own)):
                raise PermissionError("Something else listens there.")
    except (OSError, EOFError) as error:
        raise WorkerError(
            f"The driver at {invitation.host}:{invitation.port} can't be reached from {socket.gethostname()!r}: "
            f"{error}. "
            "Workers must be able to open connections to the machine that starts them."
        ) from error
    sock.settimeout(None)
    return channel


def _listen(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=1024)


def _sign(key: bytes, role: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, role + nonce, "sha256")


def _receive(channel: Channel, count: int) -> bytes:
    while (data := channel.take_raw(count)) is None:
        channel.fill()
    return data


@contextmanager
def _closed_on_error(channel: Channel) -> Iterator[None]:
    try:
        yield
    except BaseException:
        channel.close()
        raise
