"""Show this machine: cores, instruction sets, memory, packages, and the plan of a training on it."""

import argparse
import json

from boxwright.cli.options import positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments: those of `boxwright train` that the plan depends on."""
    parser.add_argument("-b", "--batch", metavar="N", type=positive, default=16, help="images per step (default 16)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or hpu (default cpu)")
    parser.add_argument("--precision", default="32", help="32, bf16, 16, 64 or bf16-true (default 32)")
    parser.add_argument(
        "--num_processes",
        "--num-processes",
        metavar="N",
        type=positive,
        help="processes (default 1, or one per GPU or Gaudi)",
    )
    parser.add_argument("--strategy", help="what starts them: subprocess or spawn (default subprocess)")


def run(args: argparse.Namespace) -> int:
    """Print the report."""
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
