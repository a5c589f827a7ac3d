"""The ASGI app: what each path of the server does."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.staticfiles import StaticFiles

from boxwright.core.errors import BoxwrightError
from boxwright.core.log import get_logger
from boxwright.serve.access_log import AccessLog
from boxwright.serve.body import Body, Held
from boxwright.serve.config import ServeConfig
from boxwright.serve.guard import Guard
from boxwright.serve.metrics import Metrics
from boxwright.serve.models import Models
from boxwright.serve.oip import answer_v2
from boxwright.serve.openapi import describe_api, describe_page
from boxwright.serve.overload import Overloaded
from boxwright.serve.predict import predict
from boxwright.serve.replies import ClientLeft, Receive, Refusal, Scope, Send, reply, reply_error, reply_json

_log = get_logger(__name__)
_PAGE = Path(__file__).parent / "page"
_DESCRIPTIONS = ("/openapi.json", "/docs")
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_NO_SCRIPTS = (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
# The page loads nothing from elsewhere, runs no inline script, and is shown in no frame of another page.
_PAGE_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; "
        b"media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"permissions-policy", b"camera=(self), microphone=(), geolocation=()"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-cache"),  # asks each time whether the file is still the same
]
Headers = dict[bytes, bytes]


class Request:
    """What every handler needs of one request."""

    __slots__ = ("arrived", "headers", "model", "path", "receive", "route", "scope", "send", "status")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self.receive = scope, receive
        self.arrived = time.monotonic()
        self.headers: Headers = dict(scope["headers"])
        self.path: str = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        self.route, self.model, self.status = "other", "", 0

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
            await send(message)

        self.send: Send = counted


class App:
    """The server as an ASGI app, to run alone or to mount in another app.

    Its workers start with the first lifespan event or, in an app that passes none on, with the first request.
    """

    def __init__(self, config: ServeConfig, *, replica: str = "") -> None:
        """Make it; `replica` is its name if there are several that share the requests."""
        self.config = config
        self.metrics = Metrics(**{"replica": replica} if replica else {})
        self._is_replica = bool(replica)
        self.held = Held(most=max(4 * config.max_body, 64 << 20))
        self.models = Models(config, self.metrics)
        self.draining = False
        self.log = AccessLog(config.access_log) if config.access_log is not None else None
        self._guard = Guard(config)
        self._page = StaticFiles(directory=_PAGE, html=True) if _PAGE.is_dir() else None
        self._starting: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None
        self.metrics.collect.append(lambda: self.metrics.bodies.set(self.held.now))
        self._routes: dict[str, tuple[str, Callable[[Request], Awaitable[None]]]] = {
            "/predict": ("POST", self._predict),
            "/models": ("GET", self._list_models),
            "/admin/models": ("POST", self._reload),
            "/healthz/live": ("GET", self._live),
            "/healthz/ready": ("GET", self._ready),
            "/metrics": ("GET", self._show_metrics),
            "/openapi.json": ("GET", self._describe),
            "/docs": ("GET", self._describe),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI asks."""
        if scope["type"] == "lifespan":
            await self._live_with(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"A {scope['type']} connection is not possible here.")
        request = Request(scope, receive, send)
        try:
            await self._answer(request)
        except ClientLeft:
            request.status = 499
        except Overloaded as error:
            seconds = str(int(error.retry_after_s + 0.999)).encode()
            await reply_error(request.send, Refusal(429, str(error), [(b"retry-after", seconds)]))
        except Refusal as refusal:
            await reply_error(request.send, refusal)
        except Exception as error:  # noqa: BLE001  the last border: whatever it is becomes an answer
            _log.error("%s failed", request.path, exc_info=error)
            if not request.status:
                await reply_error(request.send, Refusal(500, "The server failed on this request; its log says how."))
        self._count(request)

    async def _answer(self, request: Request) -> None:
        path = request.path
        if path == "/v2" or path.startswith("/v2/"):
            request.route = "v2"
            self._guard.check(path, request.headers)
            await answer_v2(self, request)
            return
        method, handle = self._routes.get(path, ("", None))
        self._guard.check(path, request.headers, is_page=handle is None or path in _DESCRIPTIONS)
        if handle is None:
            await self._serve_page(request)
            return
        request.route = path.strip("/").replace("/", "_")
        if request.scope["method"] not in (method, "HEAD" if method == "GET" else method):
            raise Refusal(405, f"{path} takes {method}.", [(b"allow", method.encode())])
        await handle(request)

    @property
    def ready(self) -> bool:
        """Whether every model answers."""
        return self.models.ready and not self.draining

    async def start(self) -> None:
        """Start the workers, once, and wait for them.

        Raises:
            BoxwrightError: a model can't be served.
        """
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self.models.load())
        await asyncio.shield(self._starting)

    def hang_up(self) -> None:
        """Load all models again and open the log again: SIGHUP."""
        if self.log is not None:
            self.log.reopen()
        self._reloading = asyncio.get_running_loop().create_task(self.models.reload())

    async def close(self) -> None:
        """Finish the accepted requests and end the workers."""
        self.draining = True
        await self.models.close()
        if self.log is not None:
            self.log.close()

    async def _live_with(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except BoxwrightError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def start_if_mounted(self) -> None:
        """Start the workers where no lifespan event came, as in an app that passes none on."""
        if self._starting is None:
            await self.start()

    async def _predict(self, request: Request) -> None:
        await self.start_if_mounted()
        body = Body(request.receive, request.headers, self.held, self.config.max_body)
        try:
            await predict(self, request, body)
        finally:
            body.release()

    async def _list_models(self, request: Request) -> None:
        await reply_json(request.send, {"models": [model.describe() for model in self.models]})

    async def _live(self, request: Request) -> None:
        await reply_json(request.send, {"live": True})

    async def _ready(self, request: Request) -> None:
        await reply_json(request.send, {"ready": self.ready}, 200 if self.ready else 503)

    async def _show_metrics(self, request: Request) -> None:
        await reply(request.send, 200, self.metrics.text().encode(), _PROMETHEUS)

    async def _describe(self, request: Request) -> None:
        names = list(self.config.models)
        if request.path == "/docs":
            await reply(request.send, 200, describe_page(names).encode(), "text/html; charset=utf-8", [_NO_SCRIPTS])
        else:
            await reply_json(request.send, describe_api(names))

    async def _reload(self, request: Request) -> None:
        self._guard.check_admin(request.headers)
        if self._is_replica:
            raise Refusal(
                409, "Several replicas serve these models: send SIGHUP to `boxwright serve`, or deploy again."
            )
        body = Body(request.receive, request.headers, self.held, 4096)
        try:
            values = json.loads(await body.read(request.arrived + self.config.timeout_s) or b"{}")
        except ValueError as error:
            raise Refusal(400, f"The body is not JSON: {error}") from error
        finally:
            body.release()
        if not isinstance(values, dict) or set(values) - {"name"} or not isinstance(values.get("name", ""), str):
            raise Refusal(
                400, 'Give {"name": NAME} or an empty body. The files are those that the server was started with.'
            )
        model = self.models.find(values.get("name"))
        request.model = model.name
        try:
            await model.load()
        except BoxwrightError as error:
            raise Refusal(422, f"{model.name!r} stays at version {model.version}: {error}") from error
        await reply_json(request.send, model.describe())

    async def _serve_page(self, request: Request) -> None:
        if self._page is None:
            raise Refusal(404, f"There is nothing at {request.path[:100]!r}.")
        from starlette.exceptions import HTTPException

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_PAGE_HEADERS]
            await request.send(message)

        scope = {**request.scope, "path": request.path, "root_path": ""}
        try:
            await self._page(scope, request.receive, send)
        except HTTPException as error:
            raise Refusal(error.status_code, f"There is nothing at {request.path[:100]!r}.") from error

    def _count(self, request: Request) -> None:
        seconds = time.monotonic() - request.arrived
        self.metrics.requests.add(request.model, request.route, str(request.status))
        self.metrics.seconds.observe(seconds, request.model, request.route)
        if self.log is not None:
            client = request.scope.get("client") or ("",)
            self.log.write(
                client=client[0],
                method=request.scope["method"],
                path=request.path,
                model=request.model,
                status=request.status,
                ms=round(seconds * 1000, 3),
            )
