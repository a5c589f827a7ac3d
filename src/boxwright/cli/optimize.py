"""Find the fastest way to run a detector on this machine that keeps its accuracy: a table, a page and an artifact."""

import argparse
import json
from dataclasses import fields
from functools import partial

from boxwright.cli.options import (
    add_data_arguments,
    add_device_argument,
    add_model_arguments,
    as_path,
    fraction,
    model_options,
    positive,
    split_list,
)
from boxwright.core.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    add_model_arguments(parser, weights=True)
    add_search_arguments(parser)


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the search, named as the fields of `OptimizeConfig`, which has the defaults."""
    add = partial(parser.add_argument, default=argparse.SUPPRESS)
    add("--data", metavar="PATH", type=as_path, help="a labelled set; its validation part is scored")
    add_data_arguments(parser, default=argparse.SUPPRESS)
    add("--val", type=fraction, help="score this share of the images, if the set has no parts")
    add("--limit", metavar="N", type=positive, help="score only the first N images")
    add("-b", "--batch", type=positive, help="images in one timed request (default 1)")
    add(
        "--max-drop", metavar="AP", type=fraction,
        help="how much AP may be lost, at the upper end of the drop's interval (default 0.005; 1 allows all)",
    )  # fmt: skip
    add("--confidence", type=fraction, help="of each end of that interval (default 0.95)")
    add("--calibration", metavar="PATH", type=as_path, help="images for int8 (default: the training part of --data)")
    add("--calibration-images", metavar="N", type=positive, help="how many of them (default 128)")
    add("--out", dest="folder", metavar="DIR", type=as_path, help="folder for the results (default runs/optimize/exp…)")
    search = parser.add_argument_group("search")
    add = partial(search.add_argument, default=argparse.SUPPRESS)
    add_device_argument(
        search,
        "run the original here, and try the methods of this device: cpu, cuda, cuda:1, hpu or auto (default cpu)",
        default=argparse.SUPPRESS,
    )
    add("--includes", metavar="LIST", nargs="+", help="try only these methods: a,b or a b (after MODEL)")
    add("--excludes", metavar="LIST", nargs="+", help="leave out these methods: a,b or a b (after MODEL)")
    add("--accelerator", metavar="LIST", help="only these: openvino,onnxruntime,jit,compile,tensorrt,…")
    add("--precision", metavar="LIST", help="only these: fp32,bf16,fp16,int8")
    add("--search-mode", choices=("default", "all"), help="all: every variant")
    add(
        "--threads", dest="thread_num", metavar="N", type=positive,
        help="computing threads (default one per physical core)",
    )  # fmt: skip
    add("--runs", dest="latency_sample_num", metavar="N", type=positive, help="timed runs of each model (default 100)")
    add("--timeout", dest="timeout_s", metavar="S", type=positive, help="seconds for one conversion (default 600)")
    add(
        "--memory",
        dest="memory_mb",
        metavar="MB",
        type=positive,
        help="memory limit of one child process (default: most of the free memory)",
    )
    add(
        "--tries", dest="search_tries", metavar="N", type=positive,
        help="how many times layers are put back into float for an int8 or bf16 row over the budget (default 5)",
    )  # fmt: skip
    add("--time-all", dest="early_stop", action="store_const", const=None, help="time very slow models to the end too")


def run(args: argparse.Namespace) -> int:
    """Search, print the table; 6 if no candidate stays inside the budget."""
    from boxwright.core.packages import require

    require("torch", "safetensors", "cloudpickle", "hotcoco", extra="train", by="boxwright optimize")
    from boxwright.tasks.optimize import OptimizeConfig, optimize

    given = {f.name: getattr(args, f.name) for f in fields(OptimizeConfig) if f.name in args}
    for name in ("max_drop", "confidence"):
        if name in given and "data" not in given:
            option = f"--{name.replace('_', '-')} {given[name]:g}"
            raise UsageError(f"{option} needs a labelled set to score. Give --data PATH.")
    for name in ("includes", "excludes", "accelerator", "precision"):
        if name in given:
            given[name] = split_list(given[name] if isinstance(given[name], str) else ",".join(given[name]))
    result = optimize(OptimizeConfig(**given, options=model_options(args)))
    if args.json:
        print(json.dumps(result.report.to_dict()))
    else:
        print(result.report.table())
        print(f"report: {result.folder / 'report.html'}")
        if result.best is not None:
            print(f"best: {result.report.best().method} in {result.best}")
    result.report.best()  # raises if all candidates are over the budget
    return 0
