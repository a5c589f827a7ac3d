"""Generate scenes, train a small detector on them, score it and find its fastest form."""

import argparse
import json
from pathlib import Path

from boxwright.cli.options import as_path, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("--out", metavar="DIR", type=as_path, help="folder for the results (default runs/demo/exp…)")
    parser.add_argument("--steps", metavar="N", type=positive, default=800, help="training steps (default 800)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the scenes (default 0)")


def run(args: argparse.Namespace) -> int:
    """Run the demo and print where its files are."""
    from boxwright.core.packages import require
    from boxwright.tasks.program import keep_freed_memory
    from boxwright.tasks.run_folders import new_run_folder

    keep_freed_memory()  # before torch is imported, as `train` does
    require("torch", "safetensors", extra="train", by="boxwright demo")
    from boxwright.tasks.demo import run_demo

    result = run_demo(args.out or new_run_folder(Path("runs/demo")), steps=args.steps, seed=args.seed)
    print(json.dumps(result.to_dict()) if args.json else "\n".join(result.lines()))
    return 0
