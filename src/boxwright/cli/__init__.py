"""The `boxwright` command. Each verb is a file here: it parses, calls a task and prints.

Help must be fast: this package imports no torch, cv2 or numpy until a verb runs.
"""

import argparse
import io
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from rich_argparse import RichHelpFormatter

from boxwright import __version__
from boxwright.core import log
from boxwright.core.errors import BoxwrightError

VERBS = {
    "predict": "find objects in images, videos and streams",
    "eval": "score a model on a labelled set (COCO AP)",
    "train": "train a detector",
    "data": "check, describe, convert, split and preview a labelled set",
    "optimize": "find the fastest way to run a model that keeps its accuracy",
    "inference_demo": "alias of `optimize` with BigDL-Nano's flags",
    "benchmark": "time converted models side by side",
    "export": "write a model as ONNX, OpenVINO, TorchScript or AOTInductor, checked",
    "info": "show a model's size, cost and classes",
    "run": "run any program with threads, cores and memory settings for this machine",
    "doctor": "show this machine and what is installed",
    "demo": "train, score and optimise on generated scenes, no data needed",
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of every verb."""
    parser = argparse.ArgumentParser(
        prog="boxwright",
        description="Train, optimise and serve the YOLOX object detector fast on the machines people already have.",
        formatter_class=RichHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"boxwright {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, what in VERBS.items():
        module = import_module(f"boxwright.cli.{verb.replace('eval', 'evaluate')}")
        sub = verbs.add_parser(verb, help=what, description=module.__doc__, formatter_class=RichHelpFormatter)
        # A verb may have subcommands (`data check`); each takes the same switches.
        for leaf in module.add_arguments(sub) or [sub]:
            group = leaf.add_argument_group("output")
            group.add_argument("--json", action="store_true", help="results as JSON on stdout, nothing else there")
            group.add_argument("-v", "--verbose", action="store_true", help="say more on stderr")
            group.add_argument("-q", "--quiet", action="store_true", help="warnings and errors only")
            group.add_argument("--debug", action="store_true", help="log everything; show tracebacks")
        sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 ok, 1 runtime, 2 usage, 3 data, 4 model, 5 export, 6 accuracy."""
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    if rest and hasattr(args, "settings") and not any(word.startswith("-") for word in rest):
        args.settings += rest  # argparse does not expect `key value` pairs between options
    elif rest:
        if hasattr(args, "settings"):  # words after an unknown flag are not the error
            rest = [word for word in rest if word.startswith("-") and not word[1:2].isdigit()] or rest
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    log.configure("debug" if args.debug else "quiet" if args.quiet else "verbose" if args.verbose else "normal")
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names may hold characters outside the terminal's encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int = args.run(args)
        print(end="", flush=True)
        return code
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of stdout closed it, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (BoxwrightError, OSError) as error:
        if args.debug:
            traceback.print_exc()
        else:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, BoxwrightError) else 1
