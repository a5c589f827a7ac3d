"""Alias of `optimize` with BigDL-Nano's flags: -n NAME -c WEIGHTS -b BATCH."""

import argparse

from boxwright.cli import optimize
from boxwright.cli.options import add_model_facts, as_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("-n", "--name", help="the model's name; weights of another are refused (default yolox_nano)")
    parser.add_argument("-c", "--ckpt", metavar="FILE", type=as_path, help="its weights (default: found by the name)")
    add_model_facts(parser, weights=True)
    optimize.add_search_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run `optimize`."""
    from boxwright.core import catalogue
    from boxwright.tasks.models import normalise_name

    args.network = None if args.name is None else normalise_name(args.name)
    if args.network is not None:
        catalogue.find("model", args.network)
    args.model = args.ckpt or args.network or "yolox_nano"
    return optimize.run(args)
