"""Arguments that several verbs share."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxwright.core.errors import UsageError
from boxwright.core.spec import LARGEST_SIDE
from boxwright.devices.chosen import check_device

if TYPE_CHECKING:
    from boxwright.tasks.models import ModelOptions

PLACES = (
    "cpu, cuda, cuda:1, hpu, or auto: an accelerator if the model can run on it "
    "(default: what an artifact was converted for, else cpu)"
)
"""What --device means for a model that exists."""


def add_model_arguments(parser: argparse.ArgumentParser, *, weights: bool = False) -> None:
    """Add MODEL and the facts about it that its file may lack.

    Args:
        parser: of the verb.
        weights: whether the verb takes only weight files, not converted models.
    """
    kinds = ".pth or .safetensors" if weights else ".pth, .safetensors, .onnx or artifact folder"
    parser.add_argument("model", metavar="MODEL", type=filled, help=f"a name (yolox_nano), {kinds}")
    add_model_facts(parser, weights=weights)


def add_model_facts(parser: argparse.ArgumentParser, *, weights: bool) -> None:
    """Add the facts about a model that its file may lack; `model_options` reads them."""
    group = parser.add_argument_group("model")
    group.add_argument("--names", metavar="LIST", help="class names: a,b,c or a file with one name per line")
    group.add_argument("--size", metavar="N|HxW", type=parse_size, help="input size in pixels, multiples of 32")
    group.add_argument("--legacy", action="store_true", help="RGB, 0-1, ImageNet mean: official weights before 0.1.1")
    if weights:
        parser.set_defaults(output_form=None)
    else:
        group.add_argument(
            "--output-form", choices=("raw", "scores", "decoded"), help="output form of an .onnx, if the guess is wrong"
        )
    group.add_argument(
        "--act", choices=("silu", "relu", "lrelu"), help="activation of a .pth, if not the model's default"
    )


def add_data_arguments(parser: argparse.ArgumentParser, default: object = False) -> None:
    """Add what every verb that reads a labelled set has."""
    parser.add_argument(
        "--allow-outside",
        "--allow_outside",
        action="store_true",
        default=default,
        help="also read files that the set names outside of its folder",
    )


def add_trust_argument(parser: argparse.ArgumentParser) -> None:
    """Add --trust."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run a model with code (machine code, TorchScript) that was not made here; only if you know who made it",
    )


def add_device_argument(parser: Any, meaning: str, **more: Any) -> None:
    """Add --device; the meaning says what its default is."""
    parser.add_argument("--device", metavar="NAME", type=device_name, help=meaning, **more)


def device_name(text: str) -> str:
    """Return the name of a device, or "auto"."""
    try:
        return check_device(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_hint_arguments(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add --hint and --explain; `check_hint_arguments` belongs to them."""
    parser.add_argument("--hint", choices=("latency", "throughput"), help=meaning)
    parser.add_argument("--explain", action="store_true", help="print on stderr what --hint chose, and why")


def check_hint_arguments(args: argparse.Namespace) -> None:
    """Reject --explain without --hint.

    Raises:
        UsageError: there is no hint.
    """
    if args.explain and args.hint is None:
        raise UsageError("--explain prints what a hint chose. Add --hint latency or --hint throughput.")


def model_options(args: argparse.Namespace) -> "ModelOptions":
    """Return these arguments as the tasks take them."""
    from boxwright.tasks.models import ModelOptions, parse_names

    return ModelOptions(
        names=None if args.names is None else parse_names(args.names),
        size_hw=args.size,
        preprocessing="legacy" if args.legacy else None,
        output=args.output_form,
        activation=args.act,
    )


def parse_size(text: str) -> tuple[int, int]:
    """Return (height, width) of "416" or "384x640"."""
    parts = text.lower().split("x")
    try:
        sides = [int(p) for p in parts]
    except ValueError:
        sides = []
    if len(sides) not in (1, 2) or min(sides) < 32 or max(sides) > LARGEST_SIDE or any(s % 32 for s in sides):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size: use 416 or 384x640 (height x width), multiples of 32 up to {LARGEST_SIDE}"
        )
    return sides[0], sides[-1]


def filled(text: str) -> str:
    """Return a text that is not empty: an empty one would mean the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty. A variable of the shell that is not set?")
    return text


def as_path(text: str) -> Path:
    """Return a path that is not empty."""
    return Path(filled(text))


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def fraction(text: str) -> float:
    """Return a number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number from 0 to 1")
    return value


def split_list(text: str) -> tuple[str, ...]:
    """Return the parts of "a,b,c"."""
    parts = tuple(p.strip() for p in text.split(",") if p.strip())
    if not parts:
        raise UsageError(f"{text!r} names nothing.")
    return parts
