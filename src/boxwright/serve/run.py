"""Running the server in this process until a signal ends it."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger
from boxwright.serve.app import App
from boxwright.serve.config import ServeConfig
from boxwright.serve.protocol import LimitedProtocol
from boxwright.tasks.models import find_model

_log = get_logger(__name__)
_BACKLOG = 1024
_IDLE_S = 75  # longer than the usual 60 s of proxies, which must be the ones to close


def name_models(models: str | Path | list[str | Path] | Mapping[str, str | Path]) -> dict[str, Path]:
    """Return the file or folder of each model by its name; text may be NAME=PATH.

    Raises:
        CheckpointError: there is no such model.
        UsageError: two models have the same name.
    """
    if isinstance(models, Mapping):
        pairs = [(name, model) for name, model in models.items()]
    else:
        pairs = [_split(one) for one in ([models] if isinstance(models, str | Path) else models)]
    named: dict[str, Path] = {}
    for given, model in pairs:
        path = find_model(model)
        name = given or (path.absolute().name if path.is_dir() else path.stem)
        if name in named:
            raise UsageError(f"Two models are called {name!r}. Name one of them: NAME={str(path)!r}")
        named[name] = path
    return named


def serve(
    models: str | Path | list[str | Path] | Mapping[str, str | Path],
    *,
    ready: Callable[[str], None] | None = None,
    **settings: Any,
) -> None:
    """Serve models over HTTP until SIGTERM or Ctrl-C; accepted requests are answered before it returns.

    Args:
        models: a model, several, or models by name; what `Predictor.load` takes.
        ready: called with the server's address when every model answers.
        **settings: those of `ServeConfig`.

    Raises:
        CheckpointError: a model can't be served.
        UsageError: a setting is wrong, or the port is taken.
    """
    serve_app(App(ServeConfig(models=name_models(models), **settings)), ready=ready)


def create_app(models: str | Path | list[str | Path] | Mapping[str, str | Path], **settings: Any) -> App:
    """Return the server as an ASGI app, to mount in another app; see `serve`."""
    return App(ServeConfig(models=name_models(models), **settings))


def serve_app(app: App, *, ready: Callable[[str], None] | None = None) -> None:
    """Run an app; see `serve`."""
    config = app.config
    listener = _listen(config.host, config.port)
    with listener:
        server = _Server(
            app,
            uvicorn.Config(
                app,
                http=LimitedProtocol,
                ws="none",
                lifespan="off",  # the address is there before the models, for the probes
                log_config=None,
                log_level=logging.CRITICAL,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_IDLE_S,
                timeout_graceful_shutdown=int(config.timeout_s) + 1,
            ),
        )
        loop_factory = server.config.get_loop_factory()
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_serve(app, server, listener, ready))


class _Server(uvicorn.Server):
    """A server whose app stops being ready with the first signal."""

    def __init__(self, app: App, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain."""
        self._app.draining = True
        if sig == signal.SIGTERM:
            self.should_exit = True  # uvicorn would raise the signal again at the end, as if it had been cut off
        else:
            super().handle_exit(sig, frame)


async def _serve(
    app: App, server: uvicorn.Server, listener: socket.socket, ready: Callable[[str], None] | None
) -> None:
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    loop = asyncio.get_running_loop()
    with suppress(ValueError, RuntimeError):  # not in the main thread
        loop.add_signal_handler(signal.SIGHUP, app.hang_up)  # while the models are loaded it would end the process
    serving = loop.create_task(_until_drained(app, server, listener))
    starting = loop.create_task(app.start())
    await asyncio.wait({serving, starting}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if starting.done() and not starting.exception():
            if ready is not None:
                ready(address)
        elif starting.done():
            server.should_exit = True
        else:
            starting.cancel()
        await serving
        if starting.done() and not starting.cancelled():
            starting.result()
    finally:
        with suppress(ValueError, RuntimeError):
            loop.remove_signal_handler(signal.SIGHUP)


async def _until_drained(app: App, server: uvicorn.Server, listener: socket.socket) -> None:
    try:
        await server.serve(sockets=[listener])
    finally:
        await app.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError, OverflowError) as error:
        raise UsageError(f"The server can't listen on {host!r}, port {port!r}: {error}.") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"The server can't listen on {host!r}, port {port!r}: {error.strerror}. Choose another --host or --port."
        ) from error
    return listener


def _split(model: str | Path) -> tuple[str, str | Path]:
    if isinstance(model, str) and "=" in model and not Path(model).exists():
        name, _, path = model.partition("=")
        return name, path
    return "", model
