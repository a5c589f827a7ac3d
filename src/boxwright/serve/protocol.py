"""uvicorn's HTTP protocol with limits on what a client may send before a handler sees it."""

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from boxwright.serve.answer import error_body

_MOST_HEADER_BYTES = 32 << 10
_MOST_HEADERS = 100
_HEADER_S = 10.0  # for the headers of a request
_DRAIN_BYTES = 64 << 20  # of an unread body, so that its sender sees the answer
MOST_CONNECTIONS = 1000


class LimitedProtocol(HttpToolsProtocol):
    """Ends connections with too many or too slow headers, and those that don't read their answer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_headers = True
        self._header_bytes = 0
        self._unread = 0
        self._refused = 0
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time for the first request."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of headers, then parse."""
        if self._in_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and not self.transport.is_closing():
            if self._header_bytes > _MOST_HEADER_BYTES:
                self._refuse(431, "The headers are too large.")
            elif self._header_bytes and self._header_timer is None:  # not while a whole request is being answered
                self._start_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header."""
        if len(self.headers) >= _MOST_HEADERS:
            self._refused = 431
            raise httptools.HttpParserError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request to the app."""
        self._in_headers, self._header_bytes, self._unread = False, 0, 0
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body; close the connection if it is too much."""
        if self.cycle.response_complete:
            self._unread += len(body)
            if self._unread > _DRAIN_BYTES:
                self.transport.abort()
                return
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect the next request."""
        self._in_headers = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Give the client a time to send the rest of an unread body."""
        super().on_response_complete()
        if not self._in_headers and not self.transport.is_closing():
            self._start_timer()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also one that does not read."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, as JSON like every error."""
        status, text = (431, "There are too many headers.") if self._refused else (400, msg)
        self._refuse(status, text)

    def _refuse(self, status: int, text: str) -> None:
        body = error_body(text)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._header_timer = self.loop.call_later(_HEADER_S, self._too_slow)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            if self._in_headers and self._header_bytes:
                self._refuse(408, "The headers took too long to arrive.")
            self.transport.abort() if self.transport.get_write_buffer_size() else self.transport.close()
