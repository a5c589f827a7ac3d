"""Find the fastest way to run a detector on this machine that keeps its accuracy: a table, a page and an artifact."""

import argparse
import json
from pathlib import Path

from boxwright.cli.options import add_model_arguments, fraction, model_options, positive, split_list
from boxwright.core.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    add_model_arguments(parser, weights=True)
    parser.set_defaults(network=None)
    add_search_arguments(parser)


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the search can be told; `inference_demo` has the same."""
    parser.add_argument("--data", metavar="PATH", type=Path, help="a labelled set; its validation part is scored")
    parser.add_argument("--val", type=fraction, help="score this part of the images, if the set has no parts")
    parser.add_argument("--limit", metavar="N", type=positive, help="score only the first N images")
    parser.add_argument("-b", "--batch", type=positive, default=1, help="images in one timed request (default 1)")
    parser.add_argument(
        "--max-drop", metavar="AP", type=fraction,
        help="how much AP may be lost, at the upper end of the drop's interval (default 0.005; 1 allows all)",
    )  # fmt: skip
    parser.add_argument("--confidence", type=fraction, help="of each end of that interval (default 0.95)")
    parser.add_argument(
        "--calibration", metavar="PATH", type=Path, help="images for int8 (default: the training part of --data)"
    )
    parser.add_argument(
        "--calibration-images", metavar="N", type=positive, default=128, help="how many of them (default 128)"
    )
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder for the results (default runs/optimize/exp…)")
    group = parser.add_argument_group("search")
    group.add_argument("--includes", metavar="LIST", nargs="+", help="try only these methods: a,b or a b (after MODEL)")
    group.add_argument(
        "--excludes", metavar="LIST", nargs="+", help="leave these methods out: a,b or a b (after MODEL)"
    )
    group.add_argument("--accelerator", metavar="LIST", help="only these: openvino,onnxruntime,jit,compile,…")
    group.add_argument("--precision", metavar="LIST", help="only these: fp32,bf16,fp16,int8")
    group.add_argument("--search-mode", choices=("default", "all"), default="default", help="all: every variant")
    group.add_argument("--threads", metavar="N", type=positive, help="computing threads (default one a physical core)")
    group.add_argument("--runs", metavar="N", type=positive, default=100, help="timed runs of each model (default 100)")
    group.add_argument(
        "--timeout", metavar="S", type=positive, default=600, help="seconds for one conversion (default 600)"
    )
    group.add_argument("--memory", metavar="MB", type=positive, help="memory for one child (default: most of the free)")
    group.add_argument(
        "--tries", metavar="N", type=positive, default=5,
        help="how often layers are put back into float for an int8 or bf16 row over the budget (default 5)",
    )  # fmt: skip
    group.add_argument("--time-all", action="store_true", help="time hopelessly slow models to the end too")


def run(args: argparse.Namespace) -> int:
    """Search, print the table; 6 if no candidate stays inside the budget."""
    from boxwright.core.packages import require

    given = {name: getattr(args, name) for name in ("max_drop", "confidence") if getattr(args, name) is not None}
    if given and args.data is None:
        name, value = next(iter(given.items()))
        raise UsageError(f"--{name.replace('_', '-')} {value:g} needs a labelled set to score. Give --data PATH.")
    require("torch", "safetensors", "cloudpickle", "hotcoco", extra="train", by="boxwright optimize")
    from boxwright.tasks.optimize import OptimizeConfig, optimize

    result = optimize(
        OptimizeConfig(
            model=args.model,
            network=args.network,
            options=model_options(args),
            folder=args.out,
            data=args.data,
            val=args.val,
            limit=args.limit,
            batch=args.batch,
            **given,
            calibration=args.calibration,
            calibration_images=args.calibration_images,
            includes=None if args.includes is None else split_list(",".join(args.includes)),
            excludes=None if args.excludes is None else split_list(",".join(args.excludes)),
            search_mode=args.search_mode,
            accelerator=None if args.accelerator is None else split_list(args.accelerator),
            precision=None if args.precision is None else split_list(args.precision),
            thread_num=args.threads,
            latency_sample_num=args.runs,
            timeout_s=float(args.timeout),
            memory_mb=args.memory,
            search_tries=args.tries,
            early_stop=None if args.time_all else 3.0,
            quiet=args.quiet,
        )
    )
    if args.json:
        print(json.dumps(result.report.to_dict()))
    else:
        print(result.report.table())
        print(f"report: {result.folder / 'report.html'}")
        if result.best is not None:
            print(f"best: {result.report.best().method} in {result.best}")
    result.report.best()  # refuses if all candidates are over the budget
    return 0
