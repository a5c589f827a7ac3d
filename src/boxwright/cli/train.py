"""Train a detector on a labelled set. Further settings follow as `key value` or `key=value`."""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxwright.cli.legacy import SPELLINGS, add_gaudi_arguments, apply_gaudi_arguments
from boxwright.cli.options import add_data_arguments, as_path, fraction, parse_size, positive
from boxwright.core.log import get_logger

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from boxwright.tasks.train.progress import StepReport

_BAR = 40
_LOSSES = {"total": "loss", "iou": "iou", "objectness": "obj", "classes": "cls", "l1": "l1"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments; each `dest` is the name of a setting, absent unless given."""
    add = partial(parser.add_argument, default=argparse.SUPPRESS)
    add("-n", "--name", dest="model", help="the model's name (default yolox_nano)")
    add("--data", *SPELLINGS["--data"], metavar="PATH|URL", help="a set in COCO, VOC or YOLO form; a URL is fetched")
    add_data_arguments(parser, default=argparse.SUPPRESS)
    add(
        "-b",
        "--batch",
        *SPELLINGS["--batch"],
        metavar="N",
        type=parse_batch,
        help="images per step, or auto (default 16)",
    )
    add("-c", "--ckpt", metavar="MODEL", type=as_path, help="start from these weights: a file or a name")
    add("--resume", action="store_true", help="resume the run in the output folder")
    add("--val", type=fraction, help="fraction of the images to hold out, if the set has no splits")
    add("--size", dest="size_hw", metavar="N|HxW", type=parse_size, help="input size (default the model's own)")
    add("--precision", help="32, bf16, 16, 64, bf16-true, or auto: the fastest on this CPU (default 32)")
    add("--device", help="cpu, cuda or hpu (default cpu)")
    add(
        "--num_processes",
        *SPELLINGS["--num_processes"],
        metavar="N",
        type=parse_processes,
        help="processes, or auto: 1, or one per GPU or Gaudi (default auto)",
    )
    add("--strategy", help="what starts them: subprocess, spawn, ray or spark (default subprocess)")
    add("--address", metavar="HOST:PORT", help="the Ray cluster (default RAY_ADDRESS, or a new one)")
    add("--master", metavar="URL", help="the Spark master (default the active session's, or local)")
    add(
        "--max_restarts",
        "--max-restarts",
        metavar="N",
        type=int,
        help="restart failed workers up to N times (default 0)",
    )
    add(
        "--min_processes",
        "--min-processes",
        metavar="N",
        type=int,
        help="continue with at least N if a cluster loses some",
    )
    add("--ship", action="store_true", help="send this machine's data and weights through ray or spark")
    add("--store", metavar="URL|PATH", help="copy the run's files there after each save; --resume reads them back")
    add("--use_ipex", *SPELLINGS["--use_ipex"], action="store_true", help="Intel's extension, where it fits")
    add("--seed", type=int, help="seed of weights, order and augmentation (default 0)")
    add("--out", dest="output_dir", metavar="DIR", type=as_path, help="folder for the run (default runs/train/exp…)")
    add_gaudi_arguments(parser)
    parser.add_argument(
        "--config", metavar="FILE", type=as_path, help="settings from a YAML file, such as an args.yaml"
    )
    parser.add_argument("settings", metavar="KEY VALUE", nargs="*", help="such as: max_epoch 30 clip_norm=35")


def parse_batch(text: str) -> int:
    """Return the number of a batch size, 0 for "auto"."""
    if text == "auto":
        return 0
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1, or auto")
    return int(text)


def parse_processes(text: str) -> int:
    """Return the number of processes, 0 for "auto"."""
    return 0 if text == "auto" else positive(text)


def run(args: argparse.Namespace) -> int:
    """Train and print where the weights are."""
    from boxwright.core import catalogue
    from boxwright.core.config import load_config, parse_overrides, read_settings
    from boxwright.core.errors import UsageError
    from boxwright.core.packages import require
    from boxwright.devices.options import set_variables
    from boxwright.tasks.models import normalise_name
    from boxwright.tasks.program import keep_freed_memory
    from boxwright.tasks.train.config import TrainConfig
    from boxwright.tasks.train.run_store import RunStore

    flags: dict[str, Any] = {key: value for key, value in vars(args).items() if key in TrainConfig.__slots__}
    if "freeze" in flags and "backbone" in args.settings:
        raise UsageError("--freeze takes no value: it freezes the backbone. Leave the word out, or use freeze=[NAME].")
    words = parse_overrides(args.settings)
    path = _find_config(args.config, flags, words)
    if "model" in flags:
        flags["model"] = normalise_name(flags["model"])
        catalogue.find("model", flags["model"])
    keep_freed_memory()  # before torch is imported
    require("torch", "safetensors", extra="train", by="boxwright train")
    if path is not None and path != args.config and not path.is_file():
        RunStore(flags["store"], flags["output_dir"]).pull_settings()
    apply_gaudi_arguments(args, flags, words, read_settings(path))
    config = load_config(TrainConfig, path, args.settings, flags)
    set_variables(config.device, config.device_options)  # before torch is imported, wherever the settings came from
    from boxwright.tasks.train.run import train

    with training_display(hidden=args.quiet) as show:
        result = train(config, progress=show)
    if args.json:
        print(json.dumps(result.to_dict()))
    else:
        best = f"best AP {result.best['AP']:.4f} AP50 {result.best['AP50']:.4f}, " if result.best else ""
        print(f"{result.steps} steps, {best}{result.images_per_s:.1f} images/s: {result.checkpoint}")
    return {"signal 15": 143, "signal 2": 130}.get(result.stopped, 0)


def _find_config(path: Path | None, flags: dict[str, Any], words: dict[str, Any]) -> Path | None:
    """Return the file that holds the run's settings; without one, add to the flags what a new run needs.

    Raises:
        UsageError: there is no data, or no run to resume.
    """
    from boxwright.core.errors import UsageError
    from boxwright.tasks.run_folders import new_run_folder

    if path is not None:
        return path
    resume, folder = flags.get("resume"), flags.get("output_dir")
    if resume and folder is not None and "store" not in flags and not folder.is_dir():
        raise UsageError(f"--resume: there is no folder {str(folder)!r}. Name the folder of the run with --out DIR.")
    if resume and folder is not None and ("store" in flags or (folder / "args.yaml").is_file()):
        flags.setdefault("ckpt", None)  # the settings name the weights that the run started from
        return Path(folder, "args.yaml")
    if "data" not in flags and "data" not in words:
        if resume and folder is not None:
            raise UsageError(f"--resume: {str(folder)!r} holds no run (no args.yaml). Name its folder with --out DIR.")
        raise UsageError("There is nothing to train on. Name a labelled set with --data PATH.")
    if "model" not in words:
        flags.setdefault("model", "yolox_nano")
    if folder is None and "output_dir" not in words:
        if resume:
            raise UsageError("--resume needs the run's folder: add --out DIR.")
        flags["output_dir"] = new_run_folder(Path("runs/train"))
    return None


@contextmanager
def training_display(*, hidden: bool = False) -> "Iterator[Callable[[StepReport], None] | None]":
    """Yield a function that shows a report on stderr; None if that is not a terminal, so that lines are logged instead.

    Log lines and what workers print appear above the display.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if hidden or not console.is_terminal:
        yield None
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live, _logging_to(console):
        yield lambda report: live.update(draw(report))


@contextmanager
def _logging_to(console: "Console") -> Iterator[None]:
    """Pass log lines through the console that draws; otherwise they would break the display."""
    from rich.logging import RichHandler

    before = [(handler, handler.console) for handler in get_logger().handlers if isinstance(handler, RichHandler)]
    for handler, _ in before:
        handler.console = console
    try:
        yield
    finally:
        for handler, own in before:
            handler.console = own


def draw(report: "StepReport") -> "RenderableType":
    """Return a report as two lines: progress and speed, then the losses."""
    from rich.text import Text

    from boxwright.tasks.train.progress import clock

    filled = round(_BAR * report.step / max(report.total, 1))
    first = Text.assemble(
        ("━" * filled, "green"),
        ("━" * (_BAR - filled), "dim"),
        f" {report.step}/{report.total}  epoch {report.epoch:.1f}  {report.images_per_s:.1f} images/s  "
        f"{clock(report.left_s)} left",
    )
    losses = "  ".join(f"{short} {report.losses[name]:.3f}" for name, short in _LOSSES.items() if name in report.losses)
    each = " per process" if report.processes > 1 else ""
    second = f"{losses}  lr {report.lr:.2e}  memory {report.memory_mb:,.0f} MB{each}".strip()
    return Text("\n").join([first, Text(second)])
