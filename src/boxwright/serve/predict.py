"""`POST /predict`: one picture, or several in a multipart form."""

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from boxwright.serve.answer import JPEG, JSON, Answer, error_body
from boxwright.serve.body import Body, Part, split_form
from boxwright.serve.pool import Job, Pool
from boxwright.serve.replies import ClientLeft, Receive, Refusal, reply
from boxwright.serve.wire import Head

if TYPE_CHECKING:
    from boxwright.serve.app import App, Request

_OPTIONS = ("conf", "nms", "classes", "model")
_NDJSON = "application/x-ndjson"
_BYTES = (b"application/octet-stream", b"application/x-www-form-urlencoded")  # the latter: curl --data-binary


async def predict(app: "App", request: "Request", body: Body) -> None:
    """Answer a request to `/predict`."""
    query = parse_query(request.scope["query_string"])
    model = app.models.find(query.pop("model", None))
    request.model = model.name
    pool = find_pool(app, model.pool)
    with pool.in_use():
        await _predict(app, request, body, pool, query)


async def _predict(app: "App", request: "Request", body: Body, pool: Pool, query: dict[str, Any]) -> None:
    accept = request.headers.get(b"accept", b"")
    draw, lines = accept.startswith(b"image/jpeg"), accept.startswith(b"application/x-ndjson")
    pool.check_room()
    deadline = request.arrived + app.config.timeout_s
    data = await body.read(deadline)
    head: Head = {"op": "predict", "arrived": request.arrived, "deadline": deadline, **query}
    content_type = request.headers.get(b"content-type", b"")
    kind = content_type.partition(b";")[0].strip().lower()
    if kind == b"multipart/form-data":
        parts = split_form(data, content_type, app.config.max_images)
        if lines or len(parts) > 1:
            if draw:
                raise Refusal(406, "Only one picture can be drawn in a request. Send one, or ask for JSON.")
            await _predict_many(app, request, pool, head, parts)
            return
        data = bytes(parts[0].data)
    elif kind and kind not in _BYTES and not kind.startswith(b"image/"):
        raise Refusal(
            415,
            "Send the bytes of a picture (image/jpeg, image/png, …) or a multipart form. URLs and paths are not taken.",
        )
    if draw:
        head["draw"] = True
    answer = await ask(pool, head, data, deadline, request.receive)
    observe(app, pool.name, answer)
    await send_answer(request, answer)


def parse_query(text: bytes) -> dict[str, Any]:
    """Return the options of a URL.

    Raises:
        Refusal: one is unknown, or has no such value.

    Example:
        >>> parse_query(b"conf=0.3&classes=person,dog&classes=cat")
        {'conf': 0.3, 'classes': ['person', 'dog', 'cat']}
    """
    if not text:
        return {}
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, max_num_fields=100)
    except ValueError as error:
        raise Refusal(400, "The query of the URL can't be read.") from error
    options: dict[str, Any] = {}
    for name, value in pairs:
        if name not in _OPTIONS:
            raise Refusal(400, f"Unknown option {name[:100]!r}. There are: {', '.join(_OPTIONS)}.")
        if name == "classes":
            options.setdefault(name, []).extend(one.strip() for one in value.split(",") if one.strip())
        elif name in options:
            raise Refusal(400, f"{name} is given twice.")
        else:
            options[name] = value if name == "model" else parse_fraction(name, value)
    return options


def parse_fraction(name: str, value: object) -> float:
    """Return a number between 0 and 1.

    Raises:
        Refusal: it is not one.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number <= 1:
        raise Refusal(400, f"{name} must be a number between 0 and 1, not {str(value)[:100]!r}.")
    return number


def find_pool(app: "App", pool: Pool | None) -> Pool:
    """Return the workers of a model.

    Raises:
        Refusal: there are none yet, or no more.
    """
    if app.draining or pool is None:
        raise Refusal(
            503, "The server is ending." if app.draining else "The model is being loaded.", [(b"retry-after", b"1")]
        )
    return pool


async def ask(pool: Pool, head: Head, data: bytes, deadline: float, receive: Receive) -> Answer:
    """Return a worker's answer; the request is given up if its client leaves while it waits.

    Raises:
        ClientLeft: the client has left.
        Overloaded: the request would wait too long.
    """
    job = pool.submit(head, data, deadline)
    # Returns when the client has left. A request that is at a worker already does not stop halfway.
    watch = asyncio.ensure_future(receive()) if job.waited else None
    if watch is not None:
        watch.add_done_callback(lambda done: None if done.cancelled() else pool.cancel(job))
    try:
        return await job.answer
    except asyncio.CancelledError:  # by `watch`, or by a server that cancels the whole request
        pool.cancel(job)
        raise ClientLeft("The client has left.") from None
    finally:
        if watch is not None:
            watch.cancel()


def observe(app: "App", name: str, answer: Answer) -> None:
    """Count the stages of an answer."""
    for stage, value in answer.timings_ms.items():
        app.metrics.stages.observe(value / 1000, name, stage)


async def send_answer(request: "Request", answer: Answer) -> None:
    """Send a worker's answer."""
    headers = [(name.encode(), value.encode()) for name, value in (answer.extra or {}).items()]
    if answer.status in (429, 503):
        headers.append((b"retry-after", b"1"))
    if answer.kind == JPEG:
        text = ", ".join(f"{name};dur={value:.3f}" for name, value in answer.timings_ms.items())
        headers.append((b"server-timing", text.encode()))
    await reply(request.send, answer.status, answer.body, answer.kind, headers)


async def _predict_many(app: "App", request: "Request", pool: Pool, head: Head, parts: list[Part]) -> None:
    """Send a line for each picture, in order; so many are at work as the workers take."""
    left = iter(parts)
    jobs: list[tuple[Part, Job]] = []

    def submit() -> None:
        if (part := next(left, None)) is not None:
            one = {**head, "source": part.name}
            jobs.append((part, pool.submit(one, bytes(part.data), head["deadline"], patient=bool(jobs))))
            part.data.clear()

    gone = asyncio.ensure_future(request.receive())
    try:
        for _ in range(pool.plan.parallel + 1):
            submit()
        headers = [(b"content-type", _NDJSON.encode())]
        await request.send({"type": "http.response.start", "status": 200, "headers": headers})
        while jobs:
            part, job = jobs[0]
            first: list[asyncio.Future[Any]] = [job.answer, gone]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not job.answer.done():
                raise ClientLeft("The client has left.")
            jobs.pop(0)
            answer = job.answer.result()
            observe(app, request.model, answer)
            line = answer.body if answer.status == 200 else _error_line(part.name, answer)
            submit()
            await request.send({"type": "http.response.body", "body": line + b"\n", "more_body": True})
        await request.send({"type": "http.response.body", "body": b""})
    finally:
        gone.cancel()
        for _, job in jobs:
            pool.cancel(job)


def _error_line(source: str, answer: Answer) -> bytes:
    values: Mapping[str, Any] = json.loads(answer.body) if answer.kind == JSON else json.loads(error_body("failed"))
    return json.dumps({"source": source, "status": answer.status, **values}, ensure_ascii=False).encode()
