"""Generate scenes, train a small detector on them, score it, find its fastest form, and show all of it on a page."""

import argparse
import json
import os
import sys
import webbrowser
from functools import partial
from pathlib import Path

from boxwright.cli.options import as_path, positive
from boxwright.core.packages import require


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("--out", metavar="DIR", type=as_path, help="folder for the results (default runs/demo/exp…)")
    parser.add_argument("--steps", metavar="N", type=positive, default=1500, help="training steps (default 1500)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the scenes (default 0)")
    parser.add_argument("--serve", action="store_true", help="then serve the fastest form, with a page to try it")
    parser.add_argument("--no-open", action="store_true", help="open no browser")


def run(args: argparse.Namespace) -> int:
    """Run the demo, print where its files are, and open its page on a desktop."""
    from boxwright.tasks.program import keep_freed_memory
    from boxwright.tasks.run_folders import new_run_folder

    keep_freed_memory()  # before torch is imported, as `train` does
    require("torch", "safetensors", extra="train", by="boxwright demo")
    if args.serve:
        require("starlette", "uvicorn", "httptools", "python_multipart", extra="serve", by="boxwright demo --serve")
    from boxwright.cli.train import training_display
    from boxwright.tasks.demo import run_demo

    folder = args.out or new_run_folder(Path("runs/demo"))
    watch = partial(training_display, hidden=args.quiet)
    result = run_demo(folder, steps=args.steps, seed=args.seed, watch=watch, quiet=args.quiet)
    print(json.dumps(result.to_dict()) if args.json else "\n".join(result.lines()), flush=True)
    opens = not (args.no_open or args.json) and _has_desktop()
    if not args.serve:
        if opens:
            webbrowser.open(result.page.resolve().as_uri())
        return 0
    from boxwright.serve.run import serve

    def show_address(address: str) -> None:
        print(f"Serving at {address} (page: {address}/). Ctrl-C ends it.", file=sys.stderr, flush=True)
        if opens:
            webbrowser.open(f"{address}/")

    serve({"demo": result.optimized.best or result.checkpoint}, ready=show_address, port=0)
    return 0


def _has_desktop() -> bool:
    """Return whether a browser can show a window to the person at this terminal."""
    return sys.stdout.isatty() and any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
