"""Running `boxwright ui` in this process until a signal ends it."""

import logging
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from boxwright.core.errors import DataError, UsageError
from boxwright.serve.protocol import LimitedProtocol
from boxwright.serve.run import create_app
from boxwright.serve.ui.app import make_app

_HOST = "127.0.0.1"


def show_folders(
    folders: list[Path],
    *,
    port: int = 0,
    models: list[str] | None = None,
    trust: bool = False,
    ready: Callable[[str, str], None] | None = None,
) -> None:
    """Show the sets, runs and reports of folders in a browser, until SIGTERM or Ctrl-C.

    Args:
        folders: where they are.
        port: of the loopback; 0 for a free one.
        models: for the tab "Try".
        trust: run models with code that was not made here.
        ready: called with the server's address, and with the one to open, which carries the token.

    Raises:
        DataError: a folder does not exist.
        UsageError: the port is taken.
    """
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"There is no folder {str(folder)!r}. Name one that holds a set, runs or reports.")
    token = secrets.token_urlsafe(24)
    app = make_app(folders, token, create_app(list(models), trust=trust) if models else None)
    try:
        listener = socket.create_server((_HOST, port))
    except OSError as error:
        raise UsageError(f"Port {port} can't be used: {error.strerror}. Choose another --port, or 0.") from error
    with listener:
        address = f"http://{_HOST}:{listener.getsockname()[1]}"
        if ready is not None:
            ready(address, f"{address}/?token={token}")
        config = uvicorn.Config(
            app,
            http=LimitedProtocol,
            ws="none",
            log_config=None,
            log_level=logging.CRITICAL,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=3,
        )
        uvicorn.Server(config).run(sockets=[listener])
