"""Make a folder for a project of your own: settings, a place for images and labels, and a README with the commands."""

import argparse
import json

from boxwright.cli.options import as_path, filled, split_list


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("folder", metavar="DIR", type=as_path, help="the new folder")
    parser.add_argument("--names", metavar="LIST", type=filled, help="what to find: cat,dog (default object)")
    parser.add_argument("-n", "--name", default="yolox_nano", help="the model's name (default yolox_nano)")
    parser.add_argument(
        "--data", metavar="PATH", type=as_path, help="an existing labelled set, in COCO, VOC or YOLO form"
    )


def run(args: argparse.Namespace) -> int:
    """Make the folder and print what is in it."""
    from boxwright.tasks.new import new_project

    names = None if args.names is None else split_list(args.names)
    files = new_project(args.folder, model=args.name, names=names, data=args.data)
    if args.json:
        print(json.dumps([str(path) for path in files]))
    else:
        print("\n".join(str(path) for path in files))
        print(f"Next: cd {args.folder} and follow README.md")
    return 0
