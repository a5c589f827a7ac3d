"""The `boxwright` command. Each verb is a file here: it parses, calls a task and prints.

Help must be fast: this package imports no torch, cv2 or numpy until a verb runs.
"""

import argparse
import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

from rich_argparse import RichHelpFormatter

from boxwright import __version__
from boxwright.cli.ending import INTERRUPTED, PrintableOut, open_closed_streams, report, settle_streams, stop
from boxwright.cli.examples import EXAMPLES
from boxwright.core import log
from boxwright.core.signals import TERMINATED, sigterm_raises
from boxwright.core.text import printable

VERBS = {
    "predict": "find objects in images, videos and streams",
    "serve": "serve detectors over HTTP, with a page to try them",
    "ui": "look at labelled sets, runs and reports in a browser",
    "eval": "score a model on a labelled set (COCO AP)",
    "compare": "compare two models on a labelled set: AP, speed, size, changed pictures",
    "train": "train a detector",
    "tune": "search for better training settings, and test that they are better",
    "data": "check, describe, convert, split and preview a labelled set",
    "optimize": "find the fastest way to run a model that keeps its accuracy",
    "inference_demo": "alias of `optimize` with BigDL-Nano's flags",
    "benchmark": "time converted models side by side",
    "export": "write a model as ONNX, OpenVINO, TorchScript or AOTInductor, checked",
    "weights": "fetch official weights by name, or take them from a folder, and check them",
    "info": "show a model's size, cost and classes",
    "run": "run any program with threads, cores and memory settings for this machine",
    "doctor": "show this machine and what is installed",
    "new": "make a folder for a project of your own: settings, a place for images and labels, a README",
    "completion": "print a script that completes commands in bash, zsh or fish",
    "demo": "train, score and optimise on generated scenes, no data needed",
}


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of every verb, or of one."""
    parser = argparse.ArgumentParser(
        prog="boxwright",
        description="Train, optimise and serve the YOLOX object detector fast on the machines people already have.",
        formatter_class=RichHelpFormatter,
        allow_abbrev=False,  # `--out` must never be taken for `--output-form`
    )
    _add_example(parser)
    parser.add_argument("--version", action="version", version=f"boxwright {__version__}")
    # Without `prog`, argparse would format a help text, which rich writes through stdout: it may be full.
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, prog="boxwright")
    for verb, what in VERBS.items():
        if only not in (None, verb):
            continue
        module = import_module(f"boxwright.cli.{verb.replace('eval', 'evaluate')}")
        sub = verbs.add_parser(
            verb, help=what, description=module.__doc__, formatter_class=RichHelpFormatter, allow_abbrev=False
        )
        _add_example(sub)
        # A verb may have subcommands (`data check`); each takes the same switches.
        for leaf in module.add_arguments(sub) or [sub]:
            group = leaf.add_argument_group("output")
            group.add_argument("--json", action="store_true", help="results as JSON on stdout, nothing else there")
            group.add_argument("-v", "--verbose", action="store_true", help="say more on stderr")
            group.add_argument("-q", "--quiet", action="store_true", help="warnings and errors only")
            group.add_argument("--debug", action="store_true", help="log everything; show tracebacks")
            _add_example(leaf)
        sub.set_defaults(run=module.run)
    return parser


def _add_example(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"Example: {EXAMPLES[parser.prog.removeprefix('boxwright ')]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 ok, 1 runtime, 2 usage, 3 data, 4 model, 5 export, 6 accuracy, 70 unexpected, 130 Ctrl-C, 143 SIGTERM.
    """
    open_closed_streams()
    debug = False
    try:
        with sigterm_raises():
            args = _parse(argv)
            debug = args.debug
            return _run(args)
    except KeyboardInterrupt:
        return stop(INTERRUPTED)
    except SystemExit as end:
        if end.code != TERMINATED:  # argparse's, after --help and for a wrong option
            raise
        return stop(TERMINATED)
    except Exception as error:  # noqa: BLE001  the last border: whatever it is becomes a sentence and an exit code
        return report(error, debug=debug)
    finally:
        settle_streams()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    words = sys.argv[1:] if argv is None else argv
    # The other verbs' modules and options cost a start 20 ms.
    parser = build_parser(words[0] if words and words[0] in VERBS else None)
    args, rest = parser.parse_known_args(words)
    if rest and hasattr(args, "settings") and not any(word.startswith("-") for word in rest):
        args.settings += rest  # argparse does not expect `key value` pairs between options
    elif rest:
        if hasattr(args, "settings"):  # words after an unknown flag are not the error
            rest = [word for word in rest if word.startswith("-") and not word[1:2].isdigit()] or rest
        parser.error(f"unrecognized arguments: {printable(' '.join(rest))}")
    return args


def _run(args: argparse.Namespace) -> int:
    log.configure("debug" if args.debug else "quiet" if args.quiet else "verbose" if args.verbose else "normal")
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names may hold characters outside the terminal's encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    out: Any = PrintableOut(sys.stdout)
    with redirect_stdout(out):
        code: int = args.run(args)
        print(end="", flush=True)
    return code
