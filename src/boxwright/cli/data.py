"""Check, describe, convert and split a labelled set, or preview the batches that training sees."""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from rich_argparse import RichHelpFormatter

from boxwright.cli.options import add_data_arguments, as_path, fraction, parse_size, positive

_FORMATS = ("coco", "voc", "yolo")
_SHARDS = ("webdataset", "parquet")


def add_arguments(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Add the subcommands and return their parsers."""
    verbs = parser.add_subparsers(dest="data_verb", metavar="VERB", required=True, prog=parser.prog)

    def add(name: str, what: str, *, split: bool = False, out: bool = False) -> argparse.ArgumentParser:
        sub = verbs.add_parser(
            name,
            help=what,
            description=what.capitalize() + ".",
            formatter_class=RichHelpFormatter,
            allow_abbrev=False,
        )
        sub.add_argument(
            "data", metavar="PATH", type=as_path, help="COCO json, VOC folder, YOLO data.yaml, or a folder"
        )
        sub.add_argument("--format", choices=_FORMATS, help="the format, if the folder can be read in several ways")
        add_data_arguments(sub)
        if split:
            sub.add_argument("--split", metavar="NAME", help="only this part: train, val or test")
        if out:
            sub.add_argument("out", metavar="OUT", type=as_path, help="the new folder")
            sub.add_argument("--link", action="store_true", help="link the images instead of copying them")
        return sub

    check = add("check", "find faults in images and labels", split=True)
    check.add_argument("--report", metavar="FILE", type=as_path, help="write every finding to this JSON file")
    check.add_argument(
        "--limit", metavar="N", type=positive, default=20, help="findings shown for each rule (default 20)"
    )
    stats = add("stats", "boxes per class, sizes and shapes", split=True)
    stats.add_argument(
        "--plot", metavar="FILE", type=as_path, help="also draw them to this file: .html, .png, .svg or .pdf"
    )
    convert = add("convert", "write the set in another format", out=True)
    convert.add_argument(
        "--to",
        choices=(*_FORMATS, *_SHARDS),
        required=True,
        help="the new format; the last two are shards for clusters",
    )
    convert.add_argument(
        "--shard-images", metavar="N", type=positive, help="webdataset and parquet: images in a shard (default 1000)"
    )
    split = add("split", "divide a set in one piece into train and val", out=True)
    split.add_argument("--val", type=fraction, default=0.2, help="fraction of the images for val (default 0.2)")
    split.add_argument("--seed", type=int, default=0, help="seed of the split (default 0)")
    split.add_argument("--to", choices=_FORMATS, default="coco", help="the format to write (default coco)")
    preview = add("preview", "draw augmented batches as training sees them", split=True)
    preview.add_argument(
        "-n", "--name", default="yolox_nano", help="the model whose augmentation is used (default yolox_nano)"
    )
    preview.add_argument("--size", metavar="N|HxW", type=parse_size, help="input size (default the model's own)")
    preview.add_argument("-b", "--batch", type=positive, default=12, help="images per batch (default 12)")
    preview.add_argument("--batches", metavar="N", type=positive, default=1, help="how many batches (default 1)")
    preview.add_argument("--seed", type=int, default=0, help="seed of the samples (default 0)")
    preview.add_argument("--no-aug", action="store_true", help="as in the last phase of training: no mosaic, no mixup")
    preview.add_argument(
        "--out", metavar="DIR", type=as_path, help="folder for the pictures (default runs/preview/exp…)"
    )
    what = "show the caches of sets that were read, or clear them"
    cache = verbs.add_parser(
        "cache",
        help=what,
        description=what.capitalize() + ".",
        formatter_class=RichHelpFormatter,
        allow_abbrev=False,
    )
    cache.add_argument("--clear", action="store_true", help="remove them; they are made again when they are needed")
    return [check, stats, convert, split, preview, cache]


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand and return the exit code."""
    verbs = {
        "check": _check,
        "stats": _stats,
        "convert": _write,
        "split": _write,
        "preview": _preview,
        "cache": _cache,
    }
    return verbs[args.data_verb](args)


def _show(args: argparse.Namespace, values: Any, lines: list[str]) -> None:
    print(json.dumps(values) if args.json else "\n".join(lines))


def _check(args: argparse.Namespace) -> int:
    from boxwright.core.log import progress_bar
    from boxwright.tasks.data import check_set

    with progress_bar(hidden=args.quiet) as show:
        advance = partial(show, "Checking")
        reports = check_set(
            args.data,
            split=args.split,
            format=args.format,
            report=args.report,
            progress=advance,
            allow_outside=args.allow_outside,
        )
    lines: list[str] = []
    for part, report in reports.items():
        lines += [f"{part}:", *(f"  {line}" for line in report.lines(args.limit))]
    _show(args, {part: report.to_dict() for part, report in reports.items()}, lines)
    return 0 if all(report.ok for report in reports.values()) else 3


def _stats(args: argparse.Namespace) -> int:
    from boxwright.tasks.data import describe_set

    stats = describe_set(
        args.data, split=args.split, format=args.format, plot=args.plot, allow_outside=args.allow_outside
    )
    _show(args, stats.to_dict(), stats.lines())
    return 0


def _write(args: argparse.Namespace) -> int:
    from boxwright.core.log import progress_bar
    from boxwright.tasks.data import convert_set, split_set

    options = {"to": args.to, "format": args.format, "link": args.link, "allow_outside": args.allow_outside}
    with progress_bar(hidden=args.quiet) as show:
        if args.data_verb == "convert":
            counts = convert_set(args.data, args.out, **options, shard_images=args.shard_images, progress=show)
        else:
            counts = split_set(args.data, args.out, val=args.val, seed=args.seed, **options, progress=show)
    _show(args, counts, [f"{part}: {count} images written to {args.out}" for part, count in counts.items()])
    return 0


def _preview(args: argparse.Namespace) -> int:
    from boxwright.tasks.data import preview_set
    from boxwright.tasks.run_folders import new_run_folder

    pictures = preview_set(
        args.data,
        args.out or new_run_folder(Path("runs/preview")),
        model=args.name,
        split=args.split,
        format=args.format,
        size_hw=args.size,
        batch=args.batch,
        batches=args.batches,
        seed=args.seed,
        no_aug=args.no_aug,
        allow_outside=args.allow_outside,
    )
    names = [str(picture) for picture in pictures]
    _show(args, names, names)
    return 0


def _cache(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from boxwright.data.caches import KINDS, clear_caches, list_caches

    caches = clear_caches() if args.clear else list_caches()
    lines = [f"{KINDS[c.name]}: {c.bytes / 1e6:.1f} MB in {c.files} files, {c.folder}" for c in caches]
    _show(args, [asdict(c) for c in caches], ["Removed:", *lines] if args.clear else lines)
    return 0
