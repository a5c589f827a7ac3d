"""What the formats share: `Layout`, the names of splits, and `Fault`.

Every reader and writer raises `DataError` for a file that it can't use, with a message for the user.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from boxwright.core.errors import DataError
from boxwright.data.records import Records

Format = Literal["coco", "voc", "yolo"]
Split = Literal["train", "val", "test"]

SPLIT_FOLDERS = ("train", "val", "valid", "test")
"""Folders that hold one split each, in some layouts."""

_LABEL_FOLDERS = ("annotations", "labels")

_WORDS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something wrong in a label file.

    Attributes:
        rule: the linter's name for it, such as "unknown-class".
        path: the image, or the label file if there is no image to name.
        message: what is wrong, a sentence.
    """

    rule: str
    path: str
    message: str


class Layout(Protocol):
    """Where the files of a set are. Finding it opens few files; `read` parses the labels.

    What the set's own files name is read only if it lies in the set's folder, unless the layout was found with
    `allow_outside`: a list or a json that somebody else wrote can name any file of this machine. Links inside the
    folder are followed.
    """

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the set comes with: some of train, val, trainval and test, or none."""

    @property
    def evidence(self) -> Path:
        """The file or folder that shows the format."""

    def read(self, split: str | None, names: Sequence[str] | None = None, faults: list[Fault] | None = None) -> Records:
        """Return the images and boxes of a split, None for all of them.

        Args:
            split: "train", "val" or "test".
            names: the class names in the order of their ids.
            faults: collects what is wrong in the labels. Without it the first error is raised.

        Raises:
            DataError: there is no such split, or a label is wrong.
        """


def record(faults: list[Fault] | None, rule: str, path: Path | str, message: str) -> None:
    """Add a fault to the list; without a list, raise it.

    Raises:
        DataError: there is no list.

    Example:
        >>> found = []
        >>> record(found, "bad-label", "a.jpg", "'a.txt': line 1 is empty.")
        >>> found[0].rule
        'bad-label'
    """
    if faults is None:
        raise DataError(f"{message} Correct it or take it out; `boxwright data check` lists all such faults.")
    faults.append(Fault(rule=rule, path=str(path), message=message))


def home_of(place: Path) -> Path:
    """Return the folder of the set that a file or folder stands for; a folder of labels is a part of it.

    Example:
        >>> home_of(Path("/coco/annotations/instances_val2017.json")).as_posix(), home_of(Path("/pets/data.yaml")).name
        ('/coco', 'pets')
    """
    folder = place if place.is_dir() else place.parent
    return folder.parent if folder.name.lower() in _LABEL_FOLDERS else folder


def outside(file: Path, name: str | Path, home: Path) -> str:
    """Return the sentences about a file that lies outside of the set's folder."""
    return (
        f"{str(file)!r} names {str(name)!r}, which is outside of the set's folder {str(home)!r}. Files there are read "
        "only with --allow-outside (in Python allow_outside=True)."
    )


def split_of(name: str) -> str | None:
    """Return the split that a file or folder is named after: train, val, test or None.

    Example:
        >>> split_of("instances_train2017"), split_of("valid"), split_of("trainees"), split_of("train_val")
        ('train', 'val', None, None)
    """
    words = (re.sub(r"\d+$", "", word) for word in re.split(r"[^a-z0-9]+", name.lower()))
    found = {_WORDS[word] for word in words if word in _WORDS}
    return found.pop() if len(found) == 1 else None


def resolve_split(split: str, given: Collection[str]) -> str | None:
    """Return which of the given parts is used for a split, None when there is none.

    `trainval` is used for train, and `test` for val, unless the two overlap.

    Example:
        >>> resolve_split("train", ["trainval", "test"]), resolve_split("val", ["trainval", "test"])
        ('trainval', 'test')
        >>> resolve_split("val", ["train"]) is resolve_split("train", ["trainval", "val"]) is None
        True
    """
    if split in given:
        return split
    if split == "train" and "trainval" in given and "val" not in given:
        return "trainval"
    # A lone test list has no training part that it could validate.
    if split == "val" and "test" in given and ("train" in given or "trainval" in given):
        return "test"
    return None


def require_split(split: str, given: Iterable[str], place: Path) -> str:
    """Return which of the given parts of the set at a place is used for a split; parts called "" don't count.

    Raises:
        DataError: there is none.
    """
    named = [name for name in given if name]
    found = resolve_split(split, named)
    if found is None:
        has = f"only {', '.join(map(repr, named))}" if named else "no splits of its own"
        raise DataError(
            f"The set {str(place)!r} has no split {split!r}, it has {has}. Name one of those, or none for all."
        )
    return found
