"""Answers to requests: what is sent, and the errors that become an answer."""

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from boxwright.core.errors import BoxwrightError
from boxwright.serve.answer import JSON, error_body

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]


class Refusal(BoxwrightError):
    """A request that gets an error as its answer."""

    def __init__(self, status: int, text: str, headers: Headers = ()) -> None:
        super().__init__(text)
        self.status, self.headers = status, tuple(headers)


class ClientLeft(BoxwrightError):
    """The client has closed the connection: nobody waits for an answer."""


async def reply(send: Send, status: int, body: bytes, kind: str = JSON, headers: Headers = ()) -> None:
    """Send a whole answer."""
    first = [
        (b"content-type", kind.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"x-content-type-options", b"nosniff"),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": first})
    await send({"type": "http.response.body", "body": body})


async def reply_json(send: Send, values: Any, status: int = 200, headers: Headers = ()) -> None:
    """Send values as JSON."""
    await reply(send, status, json.dumps(values, ensure_ascii=False).encode(), headers=headers)


async def reply_error(send: Send, refusal: Refusal) -> None:
    """Send an error."""
    await reply(send, refusal.status, error_body(str(refusal)), headers=refusal.headers)
