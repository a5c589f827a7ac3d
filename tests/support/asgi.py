"""Requests to an ASGI app in this process."""

import asyncio
from collections.abc import Mapping
from typing import Any

from support.server import Reply


async def call(app: Any, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Reply:
    """Return the app's answer."""
    sent: list[Any] = []
    bodies = [body]

    async def receive() -> Any:
        if not bodies:
            await asyncio.Event().wait()  # the client stays
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    given = {"host": "localhost", **(headers or {})}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80), "headers": [(k.encode(), v.encode()) for k, v in given.items()],
    }  # fmt: skip
    await app(scope, receive, send)
    start = sent[0]
    return Reply(
        start["status"],
        {k.decode(): v.decode() for k, v in start["headers"]},
        b"".join(message.get("body", b"") for message in sent[1:]),
    )
