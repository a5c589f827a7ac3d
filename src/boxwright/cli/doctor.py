"""Show this machine: cores, instruction sets, memory, packages, and the plan of a training on it."""

import argparse
import json
import shlex
import subprocess
import sys

from boxwright.cli.ending import say
from boxwright.cli.options import positive
from boxwright.core.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments: those of `boxwright train` that the plan depends on."""
    parser.add_argument("-b", "--batch", metavar="N", type=positive, default=16, help="images per step (default 16)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or hpu (default cpu)")
    parser.add_argument("--precision", default="32", help="32, bf16, 16, 64, bf16-true or auto (default 32)")
    parser.add_argument(
        "--num_processes",
        "--num-processes",
        metavar="N",
        type=positive,
        help="processes (default 1, or one per GPU or Gaudi)",
    )
    parser.add_argument("--strategy", help="what starts them: subprocess or spawn (default subprocess)")
    parser.add_argument(
        "--fix",
        metavar="EXTRA",
        nargs="*",
        help="install the missing packages of these extras, after asking (default optimize serve)",
    )
    parser.add_argument("--yes", action="store_true", help="with --fix: do not ask")


def run(args: argparse.Namespace) -> int:
    """Print the report, or install what is missing."""
    if args.fix is not None:
        return _fix(args, args.fix or ["optimize", "serve"])
    if args.yes:
        raise UsageError("--yes answers the question of --fix. Add --fix.")
    from boxwright.tasks.doctor import examine
    from boxwright.tasks.program import keep_freed_memory

    keep_freed_memory()  # as `train` does, whose plan is shown
    report = examine(
        device=args.device,
        precision=args.precision,
        num_processes=args.num_processes,
        strategy=args.strategy,
        batch=args.batch,
    )
    print(json.dumps(report.to_dict()) if args.json else "\n".join(report.lines()))
    return 0


def _fix(args: argparse.Namespace, extras: list[str]) -> int:
    """Print the pip command, and run it if the user agrees."""
    from boxwright.tasks.doctor import install_words, missing_of

    missing = missing_of(extras)
    command = install_words(extras) if missing else None
    if command is not None:
        say(f"Missing: {', '.join(missing)}.\n{shlex.join(command)}")
    agreed = command is not None and (args.yes or _ask("Run it? [y/N] "))
    # pip's output is not a result: stdout stays free for ours.
    code = subprocess.run(command, stdout=sys.stderr.fileno(), check=False).returncode if command and agreed else 0
    if args.json:
        print(json.dumps({"missing": missing, "command": command, "ran": agreed, "code": code}))
    elif command is None:
        print(f"Nothing is missing of {', '.join(extras)}.")
    elif not agreed:
        print("Nothing was installed.")
    return 1 if code else 0


def _ask(question: str) -> bool:
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
