"""Show this machine: cores, instruction sets, memory, and which packages are there or missing."""

import argparse
import json


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments: it has none."""


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    from boxwright.recipes.doctor import examine

    report = examine()
    print(json.dumps(report.to_dict()) if args.json else "\n".join(report.lines()))
    return 0
