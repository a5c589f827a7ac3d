"""Look at labelled sets, runs and reports in a browser, on this machine alone. It changes nothing."""

import argparse
import json
from pathlib import Path

from boxwright.cli.options import add_trust_argument, as_path
from boxwright.core.packages import require


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument(
        "folders", metavar="FOLDER", nargs="*", type=as_path, help="folders with sets, runs or reports (default: here)"
    )
    parser.add_argument("--port", metavar="N", type=_port, default=0, help="port on the loopback (default: a free one)")
    parser.add_argument("--model", metavar="MODEL", action="append", help="a model for the tab Try; may be repeated")
    add_trust_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; print the address to open."""
    require("starlette", "uvicorn", "httptools", "python_multipart", extra="serve", by="boxwright ui")
    from boxwright.serve.ui.run import show_folders

    def show(address: str, page: str) -> None:
        if args.json:
            print(json.dumps({"url": address, "page": page}), flush=True)
        else:
            print(f"Open {page}", flush=True)

    show_folders(args.folders or [Path()], port=args.port, models=args.model, trust=args.trust, ready=show)
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: use 0 to 65535")
    return int(text)
