"""Search for settings that train a better detector, with TPE and Hyperband. Further settings follow as `key value`."""

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from boxwright.cli.options import add_data_arguments, as_path, fraction, parse_size, positive
from boxwright.cli.train import parse_batch

_OWN = ("resume", "output_dir", "address")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments; each `dest` of a training setting is its name, absent unless given."""
    add = partial(parser.add_argument, default=argparse.SUPPRESS)
    add("-n", "--name", dest="model", help="the model's name (default yolox_nano)")
    add("--data", metavar="PATH|URL", help="a set in COCO, VOC or YOLO form; a URL is fetched")
    add_data_arguments(parser, default=argparse.SUPPRESS)
    add("--val", type=fraction, help="fraction of the images to hold out, if the set has no splits")
    add("-b", "--batch", metavar="N", type=parse_batch, help="images per step, or auto (default 16)")
    add("-c", "--ckpt", metavar="FILE", type=as_path, help="start every trial from these weights")
    add("--size", dest="size_hw", metavar="N|HxW", type=parse_size, help="input size (default the model's own)")
    add("--precision", help="32, bf16, 16, 64 or bf16-true (default 32)")
    add("--device", help="cpu, cuda or hpu (default cpu)")
    add("--num_processes", metavar="N", type=positive, help="processes of each trial (default 1)")
    add("--seed", type=int, help="seed of proposals and trials (default 0)")
    add("--out", dest="output_dir", metavar="DIR", type=as_path, help="folder for the search (default runs/tune/exp…)")
    group = parser.add_argument_group("search")
    group.add_argument(
        "--space", metavar="NAME=SPACE|FILE", nargs="+", action="extend", default=[],
        help="what to search: lr=real:1e-4..1e-2:log batch=int:8..32:8 mosaic=bool class_weights=choice:off,balanced, "
        "or a YAML file of such pairs (default: learning rate, momentum, weight decay, mosaic, class weights)",
    )  # fmt: skip
    group.add_argument("--trials", metavar="N", type=positive, help="trials with the defaults (default 20)")
    group.add_argument(
        "--repeats", metavar="N", type=positive, help="new seeds to compare the best with the defaults (default 3)"
    )
    group.add_argument("--engine", choices=("local", "ray"), default="local", help="what runs the trials")
    group.add_argument("--address", metavar="HOST:PORT", help="the Ray cluster (default RAY_ADDRESS, or a new one)")
    group.add_argument("--resume", action="store_true", help="continue the search in the folder of --out")
    parser.add_argument("--config", metavar="FILE", type=as_path, help="training settings from a YAML file")
    parser.add_argument("settings", metavar="KEY VALUE", nargs="*", help="such as: max_epoch 30 eval_interval=3")


def run(args: argparse.Namespace) -> int:
    """Search, print the trials and what to use."""
    from boxwright.core.errors import UsageError
    from boxwright.core.packages import require
    from boxwright.tasks.tune.config import SETTINGS, load_search

    require("torch", "safetensors", "optuna", extra="tune", by="boxwright tune")
    if args.resume:
        folder: Path | None = getattr(args, "output_dir", None)
        if folder is None or not (folder / SETTINGS).is_file():
            raise UsageError(f"--resume needs the folder of a search (with {SETTINGS}): add --out DIR.")
        flags = _training_flags(args)
        if flags or args.space or args.repeats or args.config or args.settings:
            raise UsageError(f"--resume takes its settings from {SETTINGS}. Give --out, and --trials for more trials.")
        config = replace(load_search(folder / SETTINGS, args.trials), engine=args.engine, address=args.address)
    else:
        config = _new_search(args)
    from boxwright.tasks.tune.run import tune

    result = tune(config)
    if args.json:
        print(json.dumps(result.to_dict()))
    else:
        print(result.table())
        print(f"settings to train with: {config.train.output_dir / 'best.yaml'}")
    return 0


def _training_flags(args: argparse.Namespace) -> dict[str, Any]:
    from boxwright.tasks.train.config import TrainConfig

    return {key: value for key, value in vars(args).items() if key in TrainConfig.__slots__ and key not in _OWN}


def _new_search(args: argparse.Namespace) -> Any:
    """Return the search that the command line describes.

    Raises:
        UsageError: there is no data, or a value does not fit.
    """
    from boxwright.core import catalogue
    from boxwright.core.config import load_config, parse_overrides, read_settings
    from boxwright.core.errors import UsageError
    from boxwright.tasks.models import normalise_name
    from boxwright.tasks.run_folders import new_run_folder
    from boxwright.tasks.train.config import TrainConfig
    from boxwright.tasks.tune.config import DEFAULT_SPACES, TuneConfig, read_spaces

    flags = _training_flags(args)
    given = {**read_settings(args.config), **parse_overrides(args.settings), **flags}
    if "data" not in given:
        raise UsageError("There is nothing to train on. Name a labelled set with --data PATH.")
    if "model" not in given:
        flags["model"] = "yolox_nano"
    if "model" in flags:
        flags["model"] = normalise_name(flags["model"])
        catalogue.find("model", flags["model"])
    spaces = read_spaces(args.space) or dict(DEFAULT_SPACES)
    known = {name: value for name in ("trials", "repeats") if (value := getattr(args, name)) is not None}
    place = getattr(args, "output_dir", None)
    train = load_config(TrainConfig, args.config, args.settings, {**flags, "output_dir": place or Path("runs/tune")})
    # Checked before a folder is made.
    config = TuneConfig(train=train, spaces=spaces, engine=args.engine, address=args.address, **known)
    if place is None:
        config = replace(config, train=replace(train, output_dir=new_run_folder(Path("runs/tune"))))
    return config
