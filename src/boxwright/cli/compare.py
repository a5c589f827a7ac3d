"""Compare two models on a labelled set: AP with its interval, speed, size, and the pictures that changed."""

import argparse
import json
from functools import partial
from pathlib import Path

from boxwright.cli.options import (
    add_data_arguments,
    add_model_facts,
    add_trust_argument,
    as_path,
    filled,
    fraction,
    model_options,
    positive,
)
from boxwright.core.errors import BudgetError, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("first", metavar="A", type=filled, help="a name, .pth, .safetensors, .onnx or artifact folder")
    parser.add_argument("second", metavar="B", type=filled, help="another one")
    parser.add_argument("--data", metavar="PATH", type=as_path, required=True, help="a COCO json, or a folder with one")
    add_data_arguments(parser)
    add_model_facts(parser, weights=False)
    parser.add_argument("--conf", type=fraction, default=0.001, help="lowest score (default 0.001)")
    parser.add_argument("--nms", type=fraction, default=0.65, help="overlap of boxes that suppress (default 0.65)")
    parser.add_argument("-b", "--batch", type=positive, default=8, help="images at once while scoring (default 8)")
    parser.add_argument("--limit", metavar="N", type=positive, help="only the first N images")
    add_trust_argument(parser)
    parser.add_argument(
        "--max-drop", metavar="X", type=fraction, help="exit code 6 if the AP of B is lower than that of A by more"
    )
    parser.add_argument(
        "--sure", action="store_true", help="compare --max-drop with the upper end of the drop's interval"
    )
    parser.add_argument("--out", metavar="DIR", type=as_path, help="folder for the page (default runs/compare/exp…)")


def run(args: argparse.Namespace) -> int:
    """Compare and print; return 3 if any image could not be read.

    Raises:
        BudgetError: the AP dropped by more than --max-drop.
    """
    from boxwright.core.log import progress_bar
    from boxwright.tasks.compare import compare
    from boxwright.tasks.predict.predictor import Predictor, Thresholds
    from boxwright.tasks.program import keep_freed_memory
    from boxwright.tasks.run_folders import new_run_folder

    if args.sure and args.max_drop is None:
        raise UsageError("--sure is about --max-drop. Add --max-drop 0.01, for example.")
    keep_freed_memory()
    load = partial(
        Predictor.load,
        thresholds=Thresholds(conf=args.conf, nms=args.nms),
        options=model_options(args),
        on_mismatch="refuse",  # a fallback would be another model than the one to compare
        trust=args.trust,
    )
    with progress_bar(hidden=args.quiet) as show:
        result = compare(
            args.first,
            args.second,
            args.data,
            load=load,
            batch=args.batch,
            limit=args.limit,
            progress=show,
            allow_outside=args.allow_outside,
            report=args.out or new_run_folder(Path("runs/compare")),
            conditions={"data": str(args.data), "thresholds": f"conf {args.conf:g}, nms {args.nms:g}"},
        )
    if args.json:
        print(json.dumps(result.to_dict()))
    else:
        print(*result.lines(), f"report: {result.report}", sep="\n")
    drop = result.drop(sure=args.sure)
    if args.max_drop is not None and drop > args.max_drop:
        kind = "may have dropped" if args.sure else "dropped"
        raise BudgetError(
            f"The AP {kind} by {drop:.4f} from {args.first!r} to {args.second!r}, more than --max-drop "
            f"{args.max_drop:g}. The page shows which classes and pictures: {result.report}."
        )
    return 3 if result.failures else 0
