"""Write a model in another format and compare it with the original before it is put in place."""

import argparse
import json
from dataclasses import fields

from boxwright.cli.options import (
    add_data_arguments,
    add_device_argument,
    add_model_arguments,
    as_path,
    fraction,
    model_options,
    positive,
)
from boxwright.core.errors import UsageError

_FORMATS = ("onnx", "openvino", "torchscript", "aotinductor", "tensorrt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    add_model_arguments(parser, weights=True)
    parser.add_argument(
        "--format", choices=_FORMATS, default="onnx",
        help="onnx, tensorrt: one file; the others: a folder with the file and its description (default onnx)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="PATH", type=as_path, help="must not exist (default: the model's name)")
    parser.add_argument("-b", "--batch", type=positive, help="a fixed batch size (default any)")
    parser.add_argument("--dynamic", action="store_true", help="any input size too, in multiples of 32 (onnx)")
    parser.add_argument("--decode", action="store_true", help="boxes in pixels and scores from 0 to 1, not raw outputs")
    parser.add_argument(
        "--precision", default="32", help="32 or int8; openvino, torchscript and others also bf16 or 16"
    )
    parser.add_argument(
        "--mode", choices=("qlinear", "integer"), default="", help="int8 of onnx: static (default) or dynamic"
    )
    parser.add_argument(
        "--calibration", metavar="PATH", type=as_path, help="images for int8: a folder or a labelled set"
    )
    add_data_arguments(parser)
    add_device_argument(parser, "what an aotinductor package is for: cpu, cuda or auto (default cpu)", default="cpu")
    group = parser.add_argument_group("suppression inside the file")
    group.add_argument(
        "--nms", action="store_true", help="end with non-maximum suppression: num, boxes, scores, classes"
    )
    group.add_argument("--conf", type=fraction, help="minimum score (default 0.25)")
    group.add_argument("--iou", type=fraction, help="IoU above which the lower-scored box is dropped (default 0.45)")
    group.add_argument("--max-boxes", metavar="N", type=positive, help="maximum boxes per image (default 300)")


def run(args: argparse.Namespace) -> int:
    """Write the file and print how it compares."""
    from boxwright.core.log import progress_bar
    from boxwright.core.packages import require
    from boxwright.core.types import Precision

    limits = {"conf": args.conf, "nms": args.iou, "max_boxes": args.max_boxes}
    given = {name: value for name, value in limits.items() if value is not None}
    if given and not args.nms:
        raise UsageError("--conf, --iou and --max-boxes are for the suppression inside the file. Add --nms.")
    require("torch", "safetensors", extra="train", by="boxwright export")
    from boxwright.tasks.export import ExportConfig, Suppression, export

    settings = {f.name: getattr(args, f.name) for f in fields(ExportConfig) if f.name in args}
    settings |= {"precision": Precision.parse(args.precision), "options": model_options(args)}
    config = ExportConfig(**settings, suppression=Suppression(**given) if args.nms else None)
    with progress_bar(hidden=args.quiet) as show:
        show(f"Writing {args.format}", 0, 0)  # how long it takes is not known
        written = export(args.model, args.out, config)
    print(json.dumps(written.to_dict()) if args.json else "\n".join(written.lines()))
    return 0
