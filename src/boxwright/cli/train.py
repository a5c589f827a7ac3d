"""Train a detector on a labelled set. Further settings follow as `key value` or `key=value`."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from boxwright.cli.options import fraction, parse_size, positive

# Spellings that users of the original and of its ports have in their scripts.
_ALIASES = {
    "--batch": ("--batch-size", "--batch_size"),
    "--data": ("--data_dir", "--data-dir"),
    "--num_processes": ("--num-processes", "--devices"),
    "--use_ipex": ("--use-ipex",),
    "--use_hpu": ("--use-hpu", "--hpu"),
    "--use_lazy_mode": ("--use-lazy-mode",),
    "--hmp-opt-level": ("--hmp_opt_level",),
    "--hmp-bf16": ("--hmp_bf16", "--bf16-ops"),
    "--hmp-fp32": ("--hmp_fp32", "--fp32-ops"),
    "--warmup-steps": ("--warmup_steps",),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    parser.add_argument("-n", "--name", help="the model's name (default yolox_nano)")
    parser.add_argument(
        "--data", *_ALIASES["--data"], metavar="PATH|URL", help="a set in COCO, VOC or YOLO form; a URL is fetched once"
    )
    parser.add_argument("-b", "--batch", *_ALIASES["--batch"], metavar="N", help="images a step, or auto (default 16)")
    parser.add_argument("-c", "--ckpt", metavar="FILE", type=Path, help="start from these weights (.pth or ours)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the output folder")
    parser.add_argument("--val", type=fraction, help="hold out this part of the images, if the set has no parts")
    parser.add_argument("--size", metavar="N|HxW", type=parse_size, help="input size (default the model's own)")
    parser.add_argument("--precision", help="32, bf16, 16, 64 or bf16-true (default 32)")
    parser.add_argument("--device", help="cpu, cuda or hpu (default cpu)")
    parser.add_argument(
        "--num_processes",
        *_ALIASES["--num_processes"],
        metavar="N",
        type=positive,
        help="processes (default 1, or one a GPU or Gaudi)",
    )
    parser.add_argument("--strategy", help="what starts them: subprocess, spawn, ray or spark (default subprocess)")
    parser.add_argument("--address", metavar="HOST:PORT", help="the Ray cluster (default RAY_ADDRESS, or a new one)")
    parser.add_argument("--master", metavar="URL", help="the Spark master (default the active session's, or local)")
    parser.add_argument(
        "--max_restarts", "--max-restarts", metavar="N", type=int, help="go on after a death, so often (default 0)"
    )
    parser.add_argument(
        "--min_processes", "--min-processes", metavar="N", type=int, help="go on with fewer, where a cluster lost some"
    )
    parser.add_argument(
        "--ship", action="store_true", help="send data and weights of this machine through ray or spark"
    )
    parser.add_argument(
        "--store",
        metavar="URL|PATH",
        help="copy the run's files there after every save; --resume takes them from there",
    )
    parser.add_argument(
        "--use_ipex", *_ALIASES["--use_ipex"], action="store_true", help="Intel's extension, if it fits"
    )
    parser.add_argument("--seed", type=int, help="of weights, order and augmentation (default 0)")
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder for the run (default runs/train/exp…)")
    _add_gaudi_arguments(parser)
    parser.add_argument("--config", metavar="FILE", type=Path, help="settings from a YAML file (an args.yaml, say)")
    parser.add_argument("settings", metavar="KEY VALUE", nargs="*", help="such as: max_epoch 30 clip_norm=35")


def _add_gaudi_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Gaudi")
    group.add_argument(
        "--use_hpu",
        *_ALIASES["--use_hpu"],
        action="store_true",
        help="--device hpu, on one card where no number is set",
    )
    group.add_argument(
        "--use_lazy_mode", *_ALIASES["--use_lazy_mode"], action="store_true", help="lazy instead of eager and compiled"
    )
    group.add_argument("--autocast", action="store_true", help="the same as --precision bf16")
    group.add_argument("--hmp", action="store_true", help="the old name of --autocast")
    group.add_argument("--hmp-opt-level", *_ALIASES["--hmp-opt-level"], metavar="O1", help="O1, the only level left")
    group.add_argument(
        "--hmp-bf16", *_ALIASES["--hmp-bf16"], metavar="FILE", type=Path, help="operations to run in bf16, one a line"
    )
    group.add_argument(
        "--hmp-fp32", *_ALIASES["--hmp-fp32"], metavar="FILE", type=Path, help="operations to keep in fp32, one a line"
    )
    group.add_argument("--freeze", action="store_true", help="the same as freeze [backbone]")
    group.add_argument("--noresize", action="store_true", help="the same as multiscale false")
    group.add_argument("--warmup-steps", *_ALIASES["--warmup-steps"], help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Train and print where the weights are."""
    from boxwright.cli.train_display import training_display
    from boxwright.core import catalogue
    from boxwright.core.config import load_config, parse_overrides, read_settings
    from boxwright.core.errors import UsageError
    from boxwright.core.packages import require
    from boxwright.devices.options import set_variables
    from boxwright.tasks.models import normalise_name
    from boxwright.tasks.program import keep_freed_memory
    from boxwright.tasks.run_folders import new_run_folder

    settings_in_store = goes_on = False
    if args.resume and args.out is not None and args.config is None:
        own = args.out / "args.yaml"
        settings_in_store = args.store is not None and not own.is_file()
        goes_on = settings_in_store or own.is_file()
        if goes_on:
            args.config = own  # a run goes on with its own settings; what is given besides is on top
    if args.data is None and args.config is None:
        raise UsageError("There is nothing to train on. Name a labelled set with --data PATH.")
    name = None if args.name is None else normalise_name(args.name)
    old = _read_old_flags(args)
    words = parse_overrides(args.settings)
    if name is None and args.config is None and "model" not in words:
        name = "yolox_nano"
    if name is not None:
        catalogue.find("model", name)
    keep_freed_memory()  # before torch comes
    require("torch", "safetensors", extra="train", by="boxwright train")
    from boxwright.tasks.train.config import TrainConfig
    from boxwright.tasks.train.store import take_settings

    if settings_in_store:
        take_settings(args.store, args.out)
    _settle_device(args, words, read_settings(args.config))
    if args.batch not in (None, "auto") and not (args.batch.isdecimal() and int(args.batch) > 0):
        raise UsageError(f"--batch {args.batch!r} must be a whole number of at least 1, or auto.")
    given = {
        "model": name,
        "data": args.data,
        "batch": {"auto": 0}.get(args.batch, args.batch),
        "ckpt": args.ckpt,
        "val": args.val,
        "size_hw": None if args.size is None else f"[{args.size[0]}, {args.size[1]}]",
        "precision": args.precision,
        "device": args.device,
        "lazy": args.lazy,
        "bf16_ops": args.hmp_bf16,
        "fp32_ops": args.hmp_fp32,
        "num_processes": args.num_processes,
        "strategy": args.strategy,
        "address": args.address,
        "master": args.master,
        "max_restarts": args.max_restarts,
        "min_processes": args.min_processes,
        "ship": True if args.ship else None,
        "store": args.store,
        "seed": args.seed,
        "output_dir": args.out,
        "resume": True if args.resume else None,
        "use_ipex": True if args.use_ipex else None,
        **old,
    }
    if goes_on and args.ckpt is None:
        given["ckpt"] = "null"  # the weights that the run began with are in its settings
    flags = [f"{key}={value}" for key, value in given.items() if value is not None]
    if args.out is None and args.config is None and "output_dir" not in words:
        if args.resume:
            raise UsageError("--resume needs the run's folder: add --out DIR.")
        flags.append(f"output_dir={new_run_folder(Path('runs/train'))}")
    config = load_config(TrainConfig, args.config, [*flags, *args.settings])
    set_variables(config.device, config.device_options)  # this too, wherever the settings came from
    from boxwright.tasks.train.run import train

    with training_display(hidden=args.quiet) as show:
        result = train(config, progress=show)
    if args.json:
        print(json.dumps(result.to_dict()))
    else:
        best = f"best AP {result.best['AP']:.4f} AP50 {result.best['AP50']:.4f}, " if result.best else ""
        print(f"{result.steps} steps, {best}{result.images_per_s:.1f} images/s: {result.checkpoint}")
    return {"signal 15": 143, "signal 2": 130}.get(result.stopped, 0)


def _settle_device(args: argparse.Namespace, words: Mapping[str, Any], file: Mapping[str, Any]) -> None:
    """Turn the flags that scripts for Gaudi have into `device`, `precision` and `lazy`, and say which are old.

    Args:
        args: the flags.
        words: the settings beside them.
        file: those of the config file, or of the run that goes on.

    Raises:
        UsageError: two of them contradict each other, or one has no meaning any more.
    """
    from boxwright.core.errors import UsageError
    from boxwright.core.log import get_logger
    from boxwright.core.types import Precision

    if args.use_hpu:
        if args.device not in (None, "hpu"):
            raise UsageError(f"--use_hpu and --device {args.device} contradict each other. Give one of them.")
        args.device = "hpu"
        if args.num_processes is None and "num_processes" not in words and not _says_how_many(file):
            args.num_processes = 1  # in those scripts one card is the default
    args.lazy = True if args.use_lazy_mode else None
    if args.hmp_opt_level not in (None, "O1"):
        raise UsageError(
            f"--hmp-opt-level {args.hmp_opt_level!r}: of the old levels only O1 has a successor, autocast by lists of "
            "operations. Leave it out, or use --precision bf16-true for bf16 everywhere."
        )
    asked = args.precision or words.get("precision")
    if args.hmp or args.autocast:
        if asked is None:
            asked = args.precision = "bf16"
        elif Precision.parse(asked) is not Precision.BF16:
            raise UsageError(
                f"{'--hmp' if args.hmp else '--autocast'} means bf16, and the precision is {str(asked)!r}. "
                "Give one of them."
            )
    if args.hmp_opt_level and Precision.parse(asked or file.get("precision", 32)) is not Precision.BF16:
        raise UsageError("--hmp-opt-level O1 is a level of bf16. Add --precision bf16, or leave it out.")
    if args.hmp:
        lists = "; --hmp-bf16 and --hmp-fp32 name autocast's lists" if args.hmp_bf16 or args.hmp_fp32 else ""
        get_logger(__name__).info("--hmp is gone from the plugin and means --precision bf16 now%s.", lists)


def _read_old_flags(args: argparse.Namespace) -> dict[str, str]:
    """Return the settings that further flags of those scripts stand for.

    Raises:
        UsageError: one of them has no meaning here, or a setting says the same.
    """
    from boxwright.core.config import parse_overrides
    from boxwright.core.errors import UsageError

    if args.warmup_steps is not None:
        raise UsageError(
            "--warmup-steps is not needed: the throughput leaves out the first steps by itself. Leave it out. The "
            "warm-up of the learning rate is a setting, warmup_epochs."
        )
    if args.freeze and "backbone" in args.settings:
        raise UsageError("--freeze takes no value: it freezes the backbone. Leave the word out, or use freeze=[NAME].")
    found = {}
    for flag, key, value in (("freeze", "freeze", "[backbone]"), ("noresize", "multiscale", "False")):
        if getattr(args, flag):
            if key in parse_overrides(args.settings):
                raise UsageError(f"--{flag} means {key}={value}, and {key} is given too. Give one of them.")
            found[key] = value
    return found


def _says_how_many(file: Mapping[str, Any]) -> bool:
    """Return whether a file names a number of cards; 0 means all of them, but says nothing in a run without cards."""
    return "num_processes" in file if file.get("device") == "hpu" else bool(file.get("num_processes"))
