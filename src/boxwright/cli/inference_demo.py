"""Another spelling of `optimize`, as users of the ancestor know it: -n NAME -c WEIGHTS -b BATCH."""

import argparse
from pathlib import Path

from boxwright.cli import optimize
from boxwright.cli.options import parse_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("-n", "--name", help="the model's name; weights of another are refused (default yolox_nano)")
    parser.add_argument("-c", "--ckpt", metavar="FILE", type=Path, help="its weights (default: looked for by the name)")
    parser.add_argument("--names", metavar="LIST", help="class names: a,b,c or a file with one name a line")
    parser.add_argument("--size", metavar="N|HxW", type=parse_size, help="input size in pixels, multiples of 32")
    parser.add_argument("--legacy", action="store_true", help="RGB, 0-1, ImageNet mean: official weights before 0.1.1")
    parser.add_argument("--act", choices=("silu", "relu", "lrelu"), help="activation, if it is not the usual one")
    parser.set_defaults(output_form=None)
    optimize.add_search_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Do what `optimize` does."""
    from boxwright.core import catalogue
    from boxwright.tasks.models import normalise_name

    args.network = None if args.name is None else normalise_name(args.name)
    if args.network is not None:
        catalogue.find("model", args.network)
    args.model = args.ckpt or args.network or "yolox_nano"
    return optimize.run(args)
