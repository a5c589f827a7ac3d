"""Print a script that completes verbs, options and their values in bash, zsh or fish.

bash: put eval "$(boxwright completion bash)" into ~/.bashrc. zsh: the same with zsh into ~/.zshrc, after compinit.
fish: put boxwright completion fish | source into ~/.config/fish/config.fish.
"""

import argparse
import json

_SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("shell", choices=_SHELLS, help="the shell that reads the script")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from boxwright.cli import build_parser
    from boxwright.cli.shells import WRITERS, read_commands

    script = WRITERS[args.shell](read_commands(build_parser()))
    print(json.dumps({"shell": args.shell, "script": script}) if args.json else script, end="\n" if args.json else "")
    return 0
