"""Time models in turns, each in its own process. Ratios are to the first one."""

import argparse
import json

from boxwright.cli.ending import say
from boxwright.cli.options import (
    PLACES,
    add_device_argument,
    add_hint_arguments,
    add_trust_argument,
    check_hint_arguments,
    filled,
    positive,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument(
        "models", metavar="MODEL", nargs="+", type=filled, help="artifact folders, or .pth, .safetensors, .onnx"
    )
    parser.add_argument("-b", "--batch", type=positive, default=1, help="images in one request (default 1)")
    parser.add_argument(
        "--threads", metavar="N", type=positive, help="computing threads (default one per physical core)"
    )
    add_hint_arguments(
        parser,
        "choose threads, streams and processes of artifacts and .onnx files for one request at a time, or for "
        "many in parallel (default: one request at a time, --threads)",
    )
    add_device_argument(parser, PLACES)
    add_trust_argument(parser)
    parser.add_argument("--runs", metavar="N", type=positive, default=100, help="timed runs of each (default 100)")
    parser.add_argument("--timeout", metavar="S", type=positive, default=600, help="seconds to load one (default 600)")


def run(args: argparse.Namespace) -> int:
    """Time the models and print a line for each; 4 or 5 if one can't be loaded or fails."""
    from boxwright.core.packages import require

    check_hint_arguments(args)
    require("cloudpickle", extra="train", by="boxwright benchmark")
    from boxwright.tasks.benchmark import benchmark

    result = benchmark(
        args.models,
        batch=args.batch,
        threads=args.threads,
        runs=args.runs,
        timeout_s=float(args.timeout),
        hint=args.hint,
        trust=args.trust,
        device=args.device,
    )
    if args.explain:
        say(result.explain())
    print(json.dumps(result.to_dict()) if args.json else "\n".join(result.lines()))
    code: int = result.exit_code
    return code
