"""Flags of the original YOLOX and its Gaudi port: other spellings, and the settings that replace them."""

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any

from boxwright.cli.options import as_path

# The same flag in the scripts of the original and of its ports.
SPELLINGS = {
    "--batch": ("--batch-size", "--batch_size"),
    "--data": ("--data_dir", "--data-dir"),
    "--num_processes": ("--num-processes", "--devices"),
    "--use_ipex": ("--use-ipex",),
}


def add_gaudi_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that scripts for Gaudi use."""
    group = parser.add_argument_group("Gaudi")
    setting = partial(group.add_argument, default=argparse.SUPPRESS)  # `dest` is its name, absent unless given
    group.add_argument(
        "--use_hpu", "--use-hpu", "--hpu", action="store_true", help="--device hpu, on one card by default"
    )
    setting(
        "--use_lazy_mode", "--use-lazy-mode", dest="lazy", action="store_true",
        help="lazy mode instead of eager mode and compiled graphs",
    )  # fmt: skip
    group.add_argument("--autocast", action="store_true", help="the same as --precision bf16")
    group.add_argument("--hmp", action="store_true", help="the old name of --autocast")
    group.add_argument("--hmp-opt-level", "--hmp_opt_level", metavar="O1", help="O1, the only level that still exists")
    for name, what in (("bf16", "run in bf16"), ("fp32", "keep in fp32")):
        setting(
            f"--hmp-{name}", f"--hmp_{name}", f"--{name}-ops", dest=f"{name}_ops", metavar="FILE", type=as_path,
            help=f"file with operations to {what}, one per line",
        )  # fmt: skip
    setting("--freeze", action="store_const", const=("backbone",), help="do not train the backbone")
    setting("--noresize", dest="multiscale", action="store_false", help="the same as multiscale false")
    group.add_argument("--warmup-steps", "--warmup_steps", help=argparse.SUPPRESS)


def apply_gaudi_arguments(
    args: argparse.Namespace, flags: dict[str, Any], words: Mapping[str, Any], file: Mapping[str, Any]
) -> None:
    """Turn the flags into settings.

    Args:
        args: the parsed command line.
        flags: the settings that flags give; changed in place.
        words: the settings that `key value` words give.
        file: the settings of the config file, or of the run to resume.

    Raises:
        UsageError: two flags contradict each other, or one no longer has a meaning.
    """
    from boxwright.core.errors import UsageError
    from boxwright.core.log import get_logger
    from boxwright.core.types import Precision

    if args.warmup_steps is not None:
        raise UsageError(
            "--warmup-steps is not needed: the throughput leaves out the first steps by itself. Leave it out. The "
            "warm-up of the learning rate is a setting, warmup_epochs."
        )
    for flag, key, value in (("freeze", "freeze", "[backbone]"), ("noresize", "multiscale", "False")):
        if key in flags and key in words:
            raise UsageError(f"--{flag} means {key}={value}, and {key} is given too. Give one of them.")
    if args.use_hpu:
        if flags.get("device", "hpu") != "hpu":
            raise UsageError(f"--use_hpu and --device {flags['device']} contradict each other. Give one of them.")
        flags["device"] = "hpu"
        # 0 in a file means all cards, but has no meaning in a run without cards.
        in_file = "num_processes" in file if file.get("device") == "hpu" else file.get("num_processes")
        if "num_processes" not in words and not in_file:
            flags.setdefault("num_processes", 1)  # those scripts use one card by default
    if args.hmp_opt_level not in (None, "O1"):
        raise UsageError(
            f"--hmp-opt-level {args.hmp_opt_level!r}: of the old levels only O1 has a successor, autocast by lists of "
            "operations. Leave it out, or use --precision bf16-true for bf16 everywhere."
        )
    asked = flags.get("precision") or words.get("precision")
    if args.hmp or args.autocast:
        if asked is None:
            asked = flags["precision"] = "bf16"
        elif Precision.parse(asked) is not Precision.BF16:
            raise UsageError(
                f"{'--hmp' if args.hmp else '--autocast'} means bf16, and the precision is {str(asked)!r}. "
                "Give one of them."
            )
    if args.hmp_opt_level and Precision.parse(asked or file.get("precision", 32)) is not Precision.BF16:
        raise UsageError("--hmp-opt-level O1 is a level of bf16. Add --precision bf16, or leave it out.")
    if args.hmp:
        lists = "; --hmp-bf16 and --hmp-fp32 name autocast's lists" if {"bf16_ops", "fp32_ops"} & flags.keys() else ""
        get_logger(__name__).info("--hmp no longer exists in the plugin; it means --precision bf16%s.", lists)
