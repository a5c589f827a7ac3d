"""Messages between the server and its workers: a head in JSON and a body of bytes, over a pair of sockets."""

import json
import socket
import struct
from collections.abc import Iterator
from threading import Lock
from typing import Any

Head = dict[str, Any]

_LENGTHS = struct.Struct("<II")
_BUFFER = 1 << 20


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets whose buffers hold a picture."""
    ours, theirs = socket.socketpair()
    for one in (ours, theirs):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    return ours, theirs


def pack(head: Head, size: int) -> bytes:
    """Return what precedes a body of this size."""
    text = json.dumps(head).encode()
    return _LENGTHS.pack(len(text), size) + text


class Channel:
    """The worker's end: blocking, and one thread at a time reads or writes a whole message."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._reading, self._writing = Lock(), Lock()

    def receive(self) -> tuple[Head, bytes] | None:
        """Return the next message; None when the other end is closed."""
        with self._reading:
            try:
                head_size, size = _LENGTHS.unpack(self._read(_LENGTHS.size))
                return json.loads(self._read(head_size)), self._read(size)
            except (EOFError, OSError):
                return None

    def send(self, head: Head, body: bytes = b"") -> None:
        """Send a message."""
        with self._writing:
            self._socket.sendall(pack(head, len(body)) + body)

    def _read(self, size: int) -> bytes:
        data = self._socket.recv(size, socket.MSG_WAITALL) if size else b""
        while len(data) < size:  # a signal came
            more = self._socket.recv(size - len(data), socket.MSG_WAITALL)
            if not more:
                raise EOFError
            data += more
        return data


class Unpacker:
    """Puts messages together from the pieces that arrive.

    Example:
        >>> unpacker = Unpacker()
        >>> message = pack({"id": 1}, 3) + b"abc"
        >>> list(unpacker.feed(message[:9])), list(unpacker.feed(message[9:]))
        ([], [({'id': 1}, b'abc')])
    """

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Head, bytes]]:
        """Yield the messages that are complete with these bytes."""
        self._data += data
        while len(self._data) >= _LENGTHS.size:
            head_size, size = _LENGTHS.unpack_from(self._data)
            start = _LENGTHS.size + head_size
            if len(self._data) < start + size:
                return
            head = json.loads(self._data[_LENGTHS.size : start])
            body = bytes(self._data[start : start + size])
            del self._data[: start + size]
            yield head, body
