"""Train a detector on a labelled set. Further settings follow as `key value` or `key=value`."""

import argparse
import json
from pathlib import Path

from boxwright.cli.options import parse_size, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("-n", "--name", default="yolox_nano", help="the model's name (default yolox_nano)")
    parser.add_argument("--data", metavar="PATH", type=Path, required=True, help="a COCO json, or a folder with one")
    parser.add_argument("-b", "--batch", type=positive, help="images a step (default 16)")
    parser.add_argument("--ckpt", metavar="FILE", type=Path, help="start from these weights (official .pth or ours)")
    parser.add_argument("--size", metavar="N|HxW", type=parse_size, help="input size (default the model's own)")
    parser.add_argument("--seed", type=int, help="of weights, order and flips (default 0)")
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder for the run (default runs/train/exp…)")
    parser.add_argument("settings", metavar="KEY VALUE", nargs="*", help="such as: steps 500 lr_per_image=0.0002")


def run(args: argparse.Namespace) -> int:
    """Train and print where the weights are."""
    from boxwright.cli.progress import progress_bar
    from boxwright.core import catalogue
    from boxwright.core.config import load_config
    from boxwright.recipes.models import normalise_name
    from boxwright.recipes.runs import new_run_folder

    name = normalise_name(args.name)
    catalogue.find("model", name)
    recipe = catalogue.load("recipe", "train")
    config_class = catalogue.load("recipe", "train_config")
    size = None if args.size is None else f"[{args.size[0]}, {args.size[1]}]"
    given = {
        "model": name,
        "data": args.data,
        "batch": args.batch,
        "ckpt": args.ckpt,
        "size_hw": size,
        "seed": args.seed,
    }
    words = [f"{key}={value}" for key, value in given.items() if value is not None]
    if not any(word.startswith("output_dir") for word in args.settings):
        words.append(f"output_dir={args.out or new_run_folder(Path('runs/train'))}")
    config = load_config(config_class, None, [*words, *args.settings])
    with progress_bar("Training", hidden=args.quiet) as advance:
        result = recipe(config, progress=advance)
    print(
        json.dumps(result.to_dict())
        if args.json
        else f"{result.steps} steps, {result.images_per_s:.1f} images/s, last loss {result.final_loss:.3f}: "
        f"{result.checkpoint}"
    )
    return 0
