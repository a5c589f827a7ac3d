"""Fetch official weights by name, take them from a folder or an archive, and check what is stored."""

import argparse
import json
from pathlib import Path

from rich_argparse import RichHelpFormatter

from boxwright.cli.options import as_path, filled
from boxwright.core.errors import CheckpointError
from boxwright.core.log import get_logger

_log = get_logger(__name__)
_WHERE = "They are kept in ~/.cache/boxwright (BOXWRIGHT_CACHE moves it), where every command finds them by name."


def add_arguments(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Add the subcommands and return their parsers."""
    verbs = parser.add_subparsers(dest="weights_verb", metavar="VERB", required=True, prog=parser.prog)

    def add(name: str, what: str) -> argparse.ArgumentParser:
        return verbs.add_parser(
            name,
            help=what,
            description=f"{what.capitalize()}. {_WHERE}",
            formatter_class=RichHelpFormatter,
            allow_abbrev=False,
        )

    listed = add("list", "show the official weights, and which of them are stored")
    get = add("get", "fetch official weights and check them")
    get.add_argument("models", metavar="NAME", nargs="+", type=filled, help="yolox_nano, yolox_s, …")
    get.add_argument(
        "--format",
        choices=("pth", "onnx"),
        help="pth trains and converts, onnx runs without PyTorch (default pth if PyTorch is installed)",
    )
    get.add_argument(
        "--url", type=filled, help="a mirror's folder, or the file itself (default BOXWRIGHT_WEIGHTS_URL, or GitHub)"
    )
    add_ = add("add", "store weights from a local folder or archive")
    add_.add_argument(
        "source", metavar="PATH", type=as_path, help="a folder, a tar or zip file, or one file, named as in the release"
    )
    for sub in (get, add_):
        sub.add_argument(
            "--unofficial",
            action="store_true",
            help="take files that differ from the release, if the architecture fits",
        )
    verify = add("verify", "read the stored weights again and compare their digests")
    verify.add_argument(
        "models", metavar="NAME", nargs="*", type=filled, help="only these (default all that are stored)"
    )
    path = add("path", "print the file that a name means")
    path.add_argument("model", metavar="NAME", type=filled, help="yolox_nano, yolox_s, …")
    return [listed, get, add_, verify, path]


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand and return the exit code."""
    verbs = {"list": _list, "get": _get, "add": _add, "verify": _verify, "path": _path}
    return verbs[args.weights_verb](args)


def _show_paths(args: argparse.Namespace, paths: list[Path]) -> int:
    print(json.dumps([str(path) for path in paths]) if args.json else "\n".join(map(str, paths)))
    return 0


def _list(args: argparse.Namespace) -> int:
    from boxwright.tasks.weights.get import list_weights

    rows = list_weights()
    if args.json:
        print(json.dumps([row.to_dict() for row in rows]))
        return 0
    for row in rows:
        size = "" if row.size_bytes is None else f"{row.size_bytes / 1e6:.1f} MB"
        known = "official" if row.official else "recorded" if row.sha256 else "-"
        print(f"{row.model:<12}{row.format:<6}{size:>10}  {row.state:<9}{known:<10}{(row.sha256 or '')[:12]}")
    return 0


def _get(args: argparse.Namespace) -> int:
    from boxwright.core.log import progress_bar
    from boxwright.tasks.weights.get import get_weights

    paths = []
    for model in args.models:
        with progress_bar(hidden=args.quiet, in_bytes=True) as show:
            paths.append(
                get_weights(model, format=args.format, url=args.url, unofficial=args.unofficial, progress=show)
            )
    return _show_paths(args, paths)


def _add(args: argparse.Namespace) -> int:
    from boxwright.core.log import progress_bar
    from boxwright.tasks.weights.get import add_weights

    with progress_bar(hidden=args.quiet, in_bytes=True) as show:
        paths = add_weights(args.source, unofficial=args.unofficial, progress=show)
    return _show_paths(args, paths)


def _verify(args: argparse.Namespace) -> int:
    from boxwright.core.log import progress_bar
    from boxwright.tasks.weights.get import verify_weights

    with progress_bar(hidden=args.quiet, in_bytes=True) as show:
        rows = verify_weights(tuple(args.models), progress=show)
    if args.json:
        print(json.dumps([row.to_dict() for row in rows]))
    else:
        for row in rows:
            print(f"{row.path}: {row.state}{' (official)' if row.state == 'stored' and row.official else ''}")
    changed = [row for row in rows if row.state == "changed"]
    for row in changed:
        _log.error(
            "%s is not the file that was stored. Run: boxwright weights get %s --format %s",
            row.path, row.model, row.format,
        )  # fmt: skip
    return CheckpointError.exit_code if changed else 0


def _path(args: argparse.Namespace) -> int:
    from boxwright.tasks.models import find_model
    from boxwright.tasks.weights.releases import find_release

    path = find_model(find_release(args.model, "pth").model)
    print(json.dumps(str(path)) if args.json else path)
    return 0
