"""Score a model on a labelled set: the 12 COCO numbers, AP of each class, images per second."""

import argparse
import json
from functools import partial
from pathlib import Path

from boxwright.cli.options import (
    PLACES,
    add_data_arguments,
    add_device_argument,
    add_model_arguments,
    add_trust_argument,
    as_path,
    fraction,
    model_options,
    positive,
)
from boxwright.core.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    add_model_arguments(parser)
    parser.add_argument("--data", metavar="PATH", type=as_path, required=True, help="a COCO json, or a folder with one")
    add_data_arguments(parser)
    parser.add_argument(
        "--conf", type=fraction, default=0.001, help="lowest score (default 0.001, as in official figures)"
    )
    parser.add_argument(
        "--nms", type=fraction, default=0.65, help="overlap above which the lower-scored box is dropped (default 0.65)"
    )
    parser.add_argument("--class-agnostic", action="store_true", help="suppress boxes across classes too")
    parser.add_argument("-b", "--batch", type=positive, default=8, help="images at once (default 8)")
    parser.add_argument("--limit", metavar="N", type=positive, help="only the first N images")
    add_device_argument(parser, PLACES)
    add_trust_argument(parser)
    parser.add_argument("--per-class", action="store_true", help="print each class too")
    parser.add_argument(
        "--report", action="store_true", help="also analyse the errors: report.html with pictures, and report.json"
    )
    parser.add_argument("--out", metavar="DIR", type=as_path, help="folder for the report (default runs/eval/exp…)")


def run(args: argparse.Namespace) -> int:
    """Score and print; return 3 if any image could not be read."""
    from boxwright.core.log import progress_bar
    from boxwright.tasks.evaluate import evaluate, load_to_score
    from boxwright.tasks.predict.predictor import Thresholds
    from boxwright.tasks.program import keep_freed_memory
    from boxwright.tasks.run_folders import new_run_folder

    if args.out is not None and not args.report:
        raise UsageError("--out is the folder of the report. Add --report.")
    keep_freed_memory()
    thresholds = Thresholds(conf=args.conf, nms=args.nms, class_agnostic=args.class_agnostic)
    with (
        load_to_score(
            args.model, thresholds=thresholds, options=model_options(args), trust=args.trust, device=args.device
        ) as predictor,
        progress_bar(hidden=args.quiet) as show,
    ):
        result = evaluate(
            predictor,
            args.data,
            batch=args.batch,
            limit=args.limit,
            progress=partial(show, "Scoring"),
            allow_outside=args.allow_outside,
            report=(args.out or new_run_folder(Path("runs/eval"))) if args.report else None,
            conditions={"model": str(args.model), "data": str(args.data)},
        )
    if args.json:
        print(json.dumps(result.to_dict()))
    else:
        print("\n".join(result.metrics.lines()))
        if args.per_class:
            for name, values in result.metrics.per_class.items():
                print(f"{name:20} AP {values.AP:6.3f}  AP50 {values.AP50:6.3f}  boxes {values.truths}")
        print(f"conf {args.conf:g}, nms {args.nms:g}; {result.timing}")
        if result.report is not None:
            print("Most AP is lost to:", *(result.worst or ("no error",)), sep="\n  ")
            print(f"report: {result.report}")
    return 3 if result.failures else 0
