"""Show a model's parameters, FLOPs, file size, input size and classes."""

import argparse
import json

from boxwright.cli.options import add_model_arguments, model_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print what is known about the model."""
    from boxwright.tasks.info import describe

    info = describe(args.model, model_options(args))
    print(json.dumps(info.to_dict()) if args.json else "\n".join(info.lines()))
    return 0
