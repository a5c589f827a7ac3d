"""Run any program with threads, cores and memory settings for this machine: boxwright run -- python script.py."""

import argparse
import json

from boxwright.cli.options import positive
from boxwright.core.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument(
        "--threads",
        metavar="N",
        type=positive,
        help="computing threads (default: OMP_NUM_THREADS, else one per usable core)",
    )
    parser.add_argument(
        "--cuda-to-cpu", action="store_true", help="run a Python program that was written for CUDA on the CPU"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be set, run nothing")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the program and its arguments")


def run(args: argparse.Namespace) -> int:
    """Set the environment and replace this process by the program."""
    from boxwright.tasks.program import become, prepare

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    settings = prepare(command, threads=args.threads, patched=args.cuda_to_cpu)
    if args.json and not args.dry_run:
        raise UsageError("--json goes with --dry-run: otherwise stdout belongs to the program.")
    if args.dry_run:
        print(json.dumps(settings.to_dict()) if args.json else "\n".join(settings.lines()))
        return 0
    return become(command, settings)
