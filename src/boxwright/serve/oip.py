"""The Open Inference Protocol v2: health, metadata and inference under `/v2`."""

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from boxwright import __version__
from boxwright.serve.body import Body
from boxwright.serve.models import ServedModel
from boxwright.serve.predict import ask, find_pool, observe, send_answer
from boxwright.serve.replies import Refusal, reply_json
from boxwright.serve.tensors import HEADER_LENGTH, OUTPUTS

if TYPE_CHECKING:
    from boxwright.serve.app import App, Request


async def answer_v2(app: "App", request: "Request") -> None:
    """Answer a request below `/v2`."""
    method = request.scope["method"]
    match [unquote(part) for part in request.path.split("/")[2:] if part]:
        case []:
            _want(method, "GET")
            values = {"name": "boxwright", "version": __version__, "extensions": ["binary_tensor_data"]}
            await reply_json(request.send, values)
        case ["health", "live"]:
            _want(method, "GET")
            await reply_json(request.send, {"live": True})
        case ["health", "ready"]:
            _want(method, "GET")
            await reply_json(request.send, {"ready": app.ready}, 200 if app.ready else 503)
        case ["models", name, *rest]:
            await _answer_model(app, request, app.models.find(name), rest)
        case _:
            raise Refusal(404, f"There is nothing at {request.path[:100]!r}.")


async def _answer_model(app: "App", request: "Request", model: ServedModel, rest: list[str]) -> None:
    request.model = model.name
    match rest:
        case ["versions", version, *rest] if version != str(model.version):
            raise Refusal(404, f"{model.name!r} has the version {model.version}, not {version[:100]!r}.")
        case ["versions", _, *after]:
            rest = after
    match rest:
        case []:
            _want(request.scope["method"], "GET")
            await reply_json(request.send, _describe(app, model))
        case ["ready"]:
            _want(request.scope["method"], "GET")
            ready = model.ready and not app.draining
            await reply_json(request.send, {"name": model.name, "ready": ready}, 200 if ready else 503)
        case ["infer"]:
            _want(request.scope["method"], "POST")
            await _infer(app, request, model)
        case _:
            raise Refusal(404, f"There is nothing at {request.path[:100]!r}.")


async def _infer(app: "App", request: "Request", model: ServedModel) -> None:
    request.route = "infer"
    await app.start_if_mounted()
    pool, version = find_pool(app, model.pool), model.version  # before a new one is loaded
    length = request.headers.get(HEADER_LENGTH.encode())
    if length is not None and not (length.isdigit() and len(length) < 12):
        raise Refusal(400, "Inference-Header-Content-Length must be a number.")
    body = Body(request.receive, request.headers, app.held, app.config.max_body)
    pool.check_room()
    try:
        with pool.in_use():
            deadline = request.arrived + app.config.timeout_s
            data = await body.read(deadline)
            head = {
                "op": "infer",
                "arrived": request.arrived,
                "deadline": deadline,
                "header_length": None if length is None else int(length),
                "max_images": app.config.max_images,
                "version": str(version),
            }
            answer = await ask(pool, head, data, deadline, request.receive)
    finally:
        body.release()
    observe(app, model.name, answer)
    await send_answer(request, answer)


def _describe(app: "App", model: ServedModel) -> dict[str, Any]:
    facts = find_pool(app, model.pool).facts
    height, width = facts["spec"]["size_hw"]
    return {
        "name": model.name,
        "versions": [str(model.version)],
        "platform": f"boxwright_{facts['runtime']}",
        "inputs": [
            {"name": "image", "datatype": "BYTES", "shape": [-1]},
            {"name": "pixels", "datatype": "UINT8", "shape": [-1, -1, -1, 3]},
            {"name": "tensor", "datatype": "FP32", "shape": [-1, 3, height, width]},
        ],
        "outputs": [
            {"name": name, "datatype": datatype, "shape": [-1, 4] if name == "boxes" else [-1]}
            for name, datatype in OUTPUTS.items()
        ],
        "parameters": {"inputs": "give one of them", "classes": facts["spec"]["names"]},
    }


def _want(method: str, wanted: str) -> None:
    if method != wanted and not (wanted == "GET" and method == "HEAD"):
        raise Refusal(405, f"This takes {wanted}.", [(b"allow", wanted.encode())])
