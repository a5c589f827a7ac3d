"""Serve detectors over HTTP: a JSON API, the Open Inference Protocol, metrics, and a page to try them in a browser."""

import argparse
import json

from boxwright.cli.options import add_model_facts, add_trust_argument, filled, model_options, positive
from boxwright.core.environment import TOKEN, token
from boxwright.core.errors import UsageError
from boxwright.core.packages import require


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument(
        "models", metavar="MODEL", nargs="*",
        help="a name (yolox_nano), .pth, .safetensors, .onnx or artifact folder; NAME=PATH to name it",
    )  # fmt: skip
    parser.add_argument("--host", type=filled, default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", metavar="N", type=_port, default=8000, help="port; 0 for a free one (default 8000)")
    add_model_facts(parser, weights=False)
    add_trust_argument(parser)
    _add_work(parser)
    _add_limits(parser)
    _add_access(parser)
    _add_cluster(parser)


def _add_work(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("work")
    group.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto",
        help="where weight files run (default auto: cuda for weight files where there is a GPU)",
    )  # fmt: skip
    group.add_argument(
        "--hint", choices=("auto", "latency", "throughput"), default="auto",
        help="the fastest answer, the most answers per second, or whichever suits the load (default auto)",
    )  # fmt: skip
    group.add_argument("--workers", metavar="N", type=positive, help="pictures computed in parallel, instead of --hint")
    group.add_argument(
        "--batch", metavar="N", type=positive, default=16, help="most pictures in one batch on a GPU (default 16)"
    )
    group.add_argument(
        "--batch-wait", metavar="MS", type=_amount, default=2.0, help="how long a batch waits to be filled (default 2)"
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument(
        "--max-body", metavar="BYTES", type=positive, default=16 << 20, help="size of a request (default 16 MiB)"
    )
    group.add_argument(
        "--max-pixels", metavar="N", type=positive, default=25_000_000, help="pixels of a picture (default 25 million)"
    )
    group.add_argument(
        "--max-images", metavar="N", type=positive, default=64, help="pictures of one request (default 64)"
    )
    group.add_argument(
        "--max-wait", metavar="MS", type=_amount, default=1000.0,
        help="a request that would wait longer for a worker gets 429 (default 1000)",
    )  # fmt: skip
    group.add_argument(
        "--timeout", metavar="S", type=_amount, default=30.0, help="seconds for a whole request (default 30)"
    )


def _add_access(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("access")
    group.add_argument("--token", type=filled, help=f"requests must carry it as a bearer token (better: {TOKEN})")
    group.add_argument(
        "--no-auth", action="store_true", help="listen on other addresses than the loopback without a token"
    )
    group.add_argument(
        "--allow-host", metavar="NAME", action="append", default=[], help="a name of this server in URLs; * for any"
    )
    group.add_argument("--access-log", metavar="FILE", type=filled, help="a JSON line for each request; - for stderr")


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("several machines")
    group.add_argument("--engine", choices=("local", "ray"), default="local", help="ray: Ray Serve (default local)")
    group.add_argument("--address", type=filled, help="the Ray cluster (default RAY_ADDRESS, else a new one here)")
    group.add_argument(
        "--replicas", metavar="MIN:MAX", type=_range,
        help="how many machines serve, by the length of the queue (default 1 to all)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; print one line when the models answer."""
    require("starlette", "uvicorn", "httptools", "python_multipart", extra="serve", by="boxwright serve")
    if args.engine == "local":
        for option in ("address", "replicas"):
            if getattr(args, option) is not None:
                raise UsageError(f"--{option} does nothing without --engine ray. Add it, or leave --{option} out.")
    from boxwright.serve.config import ServeConfig
    from boxwright.serve.run import name_models

    def show(address: str) -> None:
        if args.json:
            print(json.dumps({"url": address, "page": f"{address}/"}), flush=True)
        else:
            print(f"Serving at {address} (page: {address}/)", flush=True)

    config = ServeConfig(
        models=name_models(list(args.models)),
        host=args.host,
        port=args.port,
        device=args.device,
        hint=args.hint,
        workers=args.workers,
        batch=args.batch,
        batch_wait_ms=args.batch_wait,
        max_body=args.max_body,
        max_pixels=args.max_pixels,
        max_images=args.max_images,
        max_wait_ms=args.max_wait,
        timeout_s=args.timeout,
        token=args.token or token(),
        no_auth=args.no_auth,
        allow_host=tuple(args.allow_host),
        access_log=args.access_log,
        options=model_options(args),
        trust=args.trust,
    )
    if args.engine == "ray":
        require("ray", "fastapi", "aiohttp", extra="serve-ray", by="boxwright serve --engine ray")
        from boxwright.serve.ray_ import RayOptions, serve_on_ray

        serve_on_ray(config, RayOptions(address=args.address, replicas=args.replicas), ready=show)
    else:
        from boxwright.serve.app import App
        from boxwright.serve.run import serve_app

        serve_app(App(config), ready=show)
    return 0


def _range(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    if not (least.isdecimal() and (most or least).isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of machines: use 2, or 1:8")
    return int(least), int(most or least)


def _port(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: use 0 to 65535")
    return number


def _amount(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount: use a number above 0")
    return number
