"""Command lines: the options that `--help` names, with values of any kind, and unknown words."""

import contextlib
import io
import os
import re
from random import Random

from fuzz.values import NUMBERS, TEXTS

# Options that would take long, start a cluster or run a program get no values that ask for that.
_SLOW = (
    "--num_processes", "--num-processes", "--devices", "--runs", "--timeout", "--threads", "--workers", "--batches",
    "--tries", "--max_restarts", "--max-restarts", "--strategy", "--engine", "--address", "--master", "--store",
    "--memory", "--max-boxes", "--calibration-images", "--batch", "--batch-size", "--batch_size", "-b",
)  # fmt: skip
_PATHS = ("--out", "--report", "--plot", "--data", "--calibration", "--config", "--ckpt", "--resume", "--names")
_LEADS_OUT = ("outside", "/etc", "..", "~", "http", "file:")
_WORDS = tuple(
    text for text in TEXTS
    if "\0" not in text and text != "/" and not any(part in text for part in _LEADS_OUT) and "\ud800" not in text
)  # fmt: skip
_NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "32",
    "64",
    "64x96",
    "x",
    "1e3",
    "0.5",
    "nan",
    "inf",
    "1e400",
    "",
    "٣",
    "²",
    "9" * 30,
    "True",
)

Options = dict[str, list[tuple[str, bool]]]
"""For each verb, its options and whether each takes a value."""


def read_options() -> Options:
    """Return what the help of each verb says."""
    from boxwright.cli import VERBS, main

    verbs = [verb for verb in VERBS if verb not in ("data", "weights")]
    verbs += [f"data {verb}" for verb in ("check", "stats", "convert", "split", "preview")]
    verbs += [f"weights {verb}" for verb in ("list", "add", "verify", "path")]  # `get` would ask the network
    found: Options = {}
    os.environ["COLUMNS"] = "200"
    for verb in verbs:
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            main([*verb.split(), "--help"])
        pairs = re.findall(r"(?<![\w-])(--?[a-zA-Z][\w-]*)([ ][A-Z{\[][^\s,]*)?", text.getvalue())
        found[verb] = sorted(
            {(name, bool(value)) for name, value in pairs if name not in ("-h", "--help", "--debug", "--yes")}
        )
    return found


def make_command(rng: Random, options: Options, models: list[str], sets: list[str], pictures: list[str]) -> list[str]:
    """Return the words of a command, valid or not."""
    verb = rng.choice(sorted(options))
    words: list[str] = []
    if verb in ("predict", "info", "eval", "export", "benchmark"):
        words.append(rng.choice(models) if rng.random() < 0.85 else rng.choice(_WORDS))
    if verb in ("optimize", "inference_demo"):  # a good one would be searched for a minute
        words.append(rng.choice([model for model in models if model.endswith(".onnx")]))
    if verb == "predict":
        words += rng.sample(pictures, rng.choice((1, 1, 2))) if rng.random() < 0.8 else [rng.choice(_WORDS)]
    if verb in ("weights add", "weights path"):
        words.append(rng.choice([*models, *sets, *_WORDS]))
    if verb.startswith("data"):
        words.append(rng.choice(sets) if rng.random() < 0.8 else rng.choice(_WORDS))
        if verb in ("data convert", "data split"):
            words.append(rng.choice(("../out/set", "../out/set", rng.choice(_WORDS))))
            words += ["--to", rng.choice(("coco", "voc", "yolo", "webdataset", "parquet", "x"))]
    if verb == "eval":
        words += ["--data", rng.choice(sets)]
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        name, takes = rng.choice(options[verb])
        at = rng.randrange(len(words) + 1)
        words[at:at] = [name, _value(rng, name, models, sets)] if takes != (rng.random() < 0.05) else [name]
    if rng.random() < 0.05:
        words.insert(rng.randrange(len(words) + 1), rng.choice(_WORDS))
    if verb == "train":
        words += ["--data", rng.choice(sets)] if rng.random() < 0.9 else []
        words += ["--out", "../out/run", "--size", "64", "-b", "2", "steps=1", "workers=1", "multiscale=false"]
        if rng.random() < 0.3:
            words += [
                f"{rng.choice(('seed', 'lr', 'val', 'clip_norm', 'x', 'mosaic_prob', 'cache'))}={rng.choice(_NUMBERS)}"
            ]
    if verb == "run":
        words = ["--dry-run", *words, "--", "true"]
    if verb == "benchmark":
        words += ["--runs", "2"]
    if verb == "ui":  # with good words it would serve until it is killed
        words.append("../in/none")
    if verb == "demo":
        words += ["--steps", "0"]
    if verb == "export":
        words += ["--size", "64"]
    if rng.random() < 0.02:
        return [*words, verb]
    return [*verb.split(), *words]


def _value(rng: Random, name: str, models: list[str], sets: list[str]) -> str:
    if name in _SLOW:
        return rng.choice(("0", "-1", "x", "", "1", "nan"))
    if name in _PATHS and rng.random() < 0.7:
        inputs = () if name in ("--report", "--plot") else (*models, *sets)  # these may add files beside what they name
        return rng.choice(("../out/x", "../out/a/b/c", "../out/x.json", "", "x\ny", "/dev/null", "/dev/full", *inputs))
    numbers = rng.choice((_NUMBERS, tuple(str(number) for number in NUMBERS)))
    return rng.choice(numbers) if rng.random() < 0.6 else rng.choice(_WORDS)
