"""The app of `boxwright ui`: a token, and what each path answers. Every path only reads."""

import base64
import hashlib
import hmac
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from boxwright.core.errors import BoxwrightError
from boxwright.core.files import read_bytes
from boxwright.core.types import Detections
from boxwright.data.shards import read_encoded
from boxwright.report.page import make_page
from boxwright.serve.app import App
from boxwright.serve.ui import pages
from boxwright.serve.ui.found import LabelledSet, find_pages, find_runs, find_sets
from boxwright.tasks.data import draw_sample
from boxwright.tasks.train.pictures import find_pictures
from boxwright.vision.decode import decode_image, decode_scaled
from boxwright.vision.draw import draw_detections
from boxwright.vision.letterbox import shrink

THUMB_PX = 240
PATIENCE_S = 0.5
"""How long a page waits for the labels of a set before it says that they are being read."""

_COOKIE = "boxwright_ui"
_GONE = "There is nothing here (any more)."
_MOST_BYTES = 10_000_000
_HASH = base64.b64encode(hashlib.sha256(pages.SCRIPT.encode()).digest()).decode()
_HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
# A report is a file that someone may have sent: it may filter its pictures, but it is not a page of this server.
_REPORT_HEADERS = {
    **_HEADERS,
    "content-security-policy": (
        "sandbox allow-scripts; default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
    ),
}


def make_app(folders: list[Path], token: str, models: App | None = None) -> ASGIApp:
    """Return the app.

    Args:
        folders: what it shows.
        token: what the first address must carry; a cookie keeps it.
        models: the app of `serve` for the tab "Try".
    """
    sets = find_sets(folders)

    def show_data(_: Request) -> Response:
        return _html(pages.data_page(sets))

    def show_set(request: Request) -> Response:
        at, one = _pick(request, "set", sets)
        if not one.prepare(PATIENCE_S):
            return _html(pages.waiting_page(one))
        if request.query_params.get("check"):
            one.check()
            return RedirectResponse(f"/data/{at}", 303)
        return _html(pages.set_page(at, one, _filters(request, one), page=_number(request, "page") or 1))

    def show_image(request: Request) -> Response:
        at, one = _pick(request, "set", sets)
        return _html(pages.image_page(at, one, _index(request, one), _filters(request, one)))

    def show_thumb(request: Request) -> Response:
        _, one = _pick(request, "set", sets)
        return _picture(one, _index(request, one), THUMB_PX)

    def show_picture(request: Request) -> Response:
        _, one = _pick(request, "set", sets)
        return _picture(one, _index(request, one), None)

    def show_sample(request: Request) -> Response:
        _, one = _pick(request, "set", sets)
        sample = one.dataset.sample(request.path_params["epoch"] % pages.SAMPLES, _index(request, one))
        return _jpeg(draw_sample(sample.image, sample.targets, one.records.names))

    def show_runs(request: Request) -> Response:
        runs = find_runs(folders)
        chosen = request.query_params.getlist("run") or [run.key for run in runs[: pages.MOST_LINES]]
        return _html(pages.runs_page(runs, chosen))

    def show_run(request: Request) -> Response:
        run = _pick_key(request, "run", find_runs(folders))
        return _html(pages.run_page(run, _number(request, "step")))

    def show_sheet(request: Request) -> Response:
        path = find_pictures(_pick_key(request, "run", find_runs(folders)).folder).get(request.path_params["step"])
        try:
            data = b"" if path is None else read_bytes(path, max_bytes=_MOST_BYTES)
        except OSError:  # it is no longer there, or training did not write it
            data = b""
        if not data:
            raise HTTPException(404, _GONE)
        return _send_jpeg(data)

    def show_errors(_: Request) -> Response:
        return _html(pages.errors_page(find_pages(folders)))

    def show_report(request: Request) -> Response:
        page = _pick_key(request, "page", find_pages(folders))
        return Response(page.path.read_bytes(), media_type="text/html; charset=utf-8", headers=_REPORT_HEADERS)

    def show_try(_: Request) -> Response:
        return _html(pages.try_page())

    routes: list[BaseRoute] = [
        Route("/", lambda _: RedirectResponse("/data", 303)),
        Route("/data", show_data),
        Route("/data/{set:int}", show_set),
        Route("/image/{set:int}/{index:int}", show_image),
        Route("/thumb/{set:int}/{index:int}", show_thumb),
        Route("/picture/{set:int}/{index:int}", show_picture),
        Route("/augmented/{set:int}/{index:int}/{epoch:int}", show_sample),
        Route("/runs", show_runs),
        Route("/runs/{run}", show_run),
        Route("/runs/{run}/pictures/{step:int}", show_sheet),
        Route("/errors", show_errors),
        Route("/report/{page}", show_report),
        Route("/try", show_try) if models is None else Mount("/try", models),
    ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        if models is not None:
            await models.close()

    handlers: dict[Any, Callable[[Request, Any], Response]] = {
        BoxwrightError: lambda _, error: _sorry(str(error), 422),
        HTTPException: lambda _, error: _sorry(str(error.detail), error.status_code),
    }
    return _Locked(Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers), token)


class _Locked:
    """Lets only those in who know the token, from the address or from the cookie that it was exchanged for."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        name = f"{_COOKIE}_{request.url.port}"
        if self._is_right(request.query_params.get("token", "")):
            answer: ASGIApp = RedirectResponse(scope["path"], 303, headers=_HEADERS)
            assert isinstance(answer, Response)
            answer.set_cookie(name, self._token, httponly=True, samesite="lax")
        elif self._is_right(request.cookies.get(name, "")):
            answer = self._app
        else:
            page = make_page("Boxwright", "Open the address that boxwright ui printed: it carries a token.")
            answer = HTMLResponse(page, 401, headers=_HEADERS)
        await answer(scope, receive, send)

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token.encode())


def _html(text: str) -> Response:
    return HTMLResponse(text.encode("utf-8", "replace"), headers={**_HEADERS, "cache-control": "no-store"})


def _sorry(said: str, status: int) -> Response:
    page = pages.frame("", "Boxwright", said)
    return HTMLResponse(page.encode("utf-8", "replace"), status, headers=_HEADERS)


def _pick(request: Request, name: str, things: Any) -> tuple[int, Any]:
    at = request.path_params[name]
    if not at < len(things):
        raise HTTPException(404, _GONE)
    return at, things[at]


def _pick_key(request: Request, name: str, things: Iterable[Any]) -> Any:
    for one in things:
        if one.key == request.path_params[name]:
            return one
    raise HTTPException(404, _GONE)


def _filters(request: Request, one: LabelledSet) -> pages.Filters:
    query, class_id = request.query_params, _number(request, "class")
    known = class_id is not None and class_id < len(one.records.names)
    return pages.Filters(class_id=class_id if known else None, size=query.get("size", ""), fault=query.get("fault", ""))


def _index(request: Request, one: LabelledSet) -> int:
    index: int = request.path_params["index"]
    if index >= len(one.records):
        raise HTTPException(404, "The set has no such image.")
    return index


def _number(request: Request, name: str) -> int | None:
    word = request.query_params.get(name, "")
    return int(word) if word.isdecimal() and len(word) < 10 else None


def _picture(one: LabelledSet, index: int, side: int | None) -> Response:
    """Return an image with its boxes as JPEG, fitted into a square if `side` is given."""
    records = one.records
    path = records.path(index)
    if side is None:
        image = decode_image(read_encoded(path), str(path))
        true_hw = (image.shape[0], image.shape[1])
    else:
        image, true_hw = decode_scaled(read_encoded(path), str(path), (side, side))
        image = shrink(image, side)
    boxes = records.boxes(index)
    finite = np.flatnonzero(np.isfinite(boxes).all(axis=1))
    labels = Detections(
        boxes_xyxy=boxes[finite].clip(-1e6, 1e6),
        scores=np.ones(len(finite), np.float32),
        class_ids=records.class_ids_of(index)[finite].astype(np.int64),
        names=records.names,
        size_hw=true_hw,
    )
    return _jpeg(draw_detections(image, labels, scores=False))


def _jpeg(image: NDArray[np.uint8]) -> Response:
    return _send_jpeg(cv2.imencode(".jpg", image)[1].tobytes())


def _send_jpeg(data: bytes) -> Response:
    return Response(data, media_type="image/jpeg", headers={**_HEADERS, "cache-control": "private, max-age=60"})
