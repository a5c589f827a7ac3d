"""A new project: a folder with the settings of a training, a place for images and labels, and a README."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from boxwright.core import catalogue
from boxwright.core.errors import DataError, UsageError
from boxwright.core.files import write_whole
from boxwright.tasks.data import refuse_filled
from boxwright.tasks.models import normalise_name

_SETTINGS = """\
# The settings of a training: boxwright train --config train.yaml
# Any other setting may be added; `boxwright train --help` and args.yaml in the run's folder have them all.
model: {model}
data: {data}
output_dir: runs/first
max_epoch: 100
batch: 16
patience: 3  # stop after this many evaluations without a better AP
"""

_YOLO = """\
# images/train/cat.jpg has its labels in labels/train/cat.txt, one line per box:
# class x y width height; the class counts from 0, the others are the box's centre and size as fractions of the image.
train: images/train
val: images/val
names: {names}
"""

_README = """\
# {title}

{where}

Look for faults in the images and labels:

```bash
boxwright data check {data}
```

Fetch the official weights to start from, and train. The results are in `runs/first`; `train.yaml` has the settings:

```bash
boxwright weights get {model} --format pth
boxwright train --config train.yaml --ckpt {model}
```

Without a network, leave `--ckpt` out: the training starts from random weights and needs more epochs.
A training that was interrupted resumes:

```bash
boxwright train --resume --out runs/first
```

Score the best weights, and look at what they find:

```bash
boxwright eval runs/first/weights/best.safetensors --data {data}
boxwright predict runs/first/weights/best.safetensors {pictures} --out runs/pictures
```

Find the fastest way to run them on this machine, and use it:

```bash
boxwright optimize runs/first/weights/best.safetensors --data {data} --out runs/fast
boxwright predict runs/fast/best {pictures}
boxwright serve runs/fast/best
```
"""

_FOLDERS = """\
Put the images into `data/images/train` and `data/images/val`, and their labels into `data/labels/train` and
`data/labels/val`; `data/data.yaml` says how. About one image in five belongs into `val`. To use a set in another
form (COCO, Pascal VOC), name it in `train.yaml` and in the commands instead."""


def new_project(
    folder: Path, *, model: str = "yolox_nano", names: Sequence[str] | None = None, data: Path | None = None
) -> list[Path]:
    """Make a project's folder and return its files.

    Args:
        folder: the folder; it must be empty or not exist.
        model: the model to train.
        names: the classes, for the empty set that is made; None for one class "object".
        data: a labelled set that is there already; None makes the folders of an empty one.

    Raises:
        UsageError: the folder holds something, there is no such model, or both names and data are given.
        DataError: there is no such set.
    """
    model = normalise_name(model)
    catalogue.find("model", model)
    if data is not None and names is not None:
        raise UsageError("--names are for a new set, and --data names one that has its own. Leave one of them out.")
    if data is not None and not data.exists():
        raise DataError(f"There is no data set at {str(data)!r}. Check the path.")
    refuse_filled(folder)
    place = "data" if data is None else os.path.abspath(data)
    values = {"model": model, "data": shlex.quote(place), "title": folder.resolve().name}
    values |= {"where": _FOLDERS, "pictures": "data/images/val"}
    if data is not None:
        values |= {"where": f"The images and labels are in `{place}`.", "pictures": "PICTURES"}
    files = {
        "README.md": _README.format(**values),
        "train.yaml": _SETTINGS.format(model=model, data=_in_one_line(place)),
        ".gitignore": "runs/\n",
    }
    if data is None:
        files["data/data.yaml"] = _YOLO.format(names=_in_one_line(list(names or ("object",))))
        for part in ("train", "val"):
            for kind in ("images", "labels"):
                (folder / "data" / kind / part).mkdir(parents=True)
    for name, text in files.items():
        write_whole(folder / name, text)
    return [folder / name for name in files]


def _in_one_line(value: str | list[str]) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=sys.maxsize)
    return text.removesuffix("...\n").rstrip("\n")
