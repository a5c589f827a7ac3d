"""The names of splits: which words mean train, val and test, and which given part serves for which."""

import re
from collections.abc import Collection
from typing import Literal, get_args

from boxwright.core.errors import DataError, UsageError, suggest

Split = Literal["train", "val", "test"]

_WORDS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}

SPLIT_FOLDERS = ("train", "val", "valid", "test")
"""Folders that hold one split each, in some layouts."""


def split_of(name: str) -> str | None:
    """Return the split that a file or folder name speaks of: train, val, test or None.

    Example:
        >>> split_of("instances_train2017"), split_of("valid"), split_of("trainees"), split_of("train_val")
        ('train', 'val', None, None)
    """
    words = (re.sub(r"\d+$", "", word) for word in re.split(r"[^a-z0-9]+", name.lower()))
    found = {_WORDS[word] for word in words if word in _WORDS}
    return found.pop() if len(found) == 1 else None


def serving(split: str, given: Collection[str]) -> str | None:
    """Return which of the given parts serves as a split, None when there is none.

    `trainval` serves as train, and `test` as val, as far as the two don't overlap.

    Example:
        >>> serving("train", ["trainval", "test"]), serving("val", ["trainval", "test"]), serving("val", ["train"])
        ('trainval', 'test', None)
        >>> serving("train", ["trainval", "val"]) is None
        True
    """
    if split in given:
        return split
    if split == "train" and "trainval" in given and "val" not in given:
        return "trainval"
    # Without a training part, a lone test list is no validation part: there is nothing to validate.
    if split == "val" and "test" in given and ("train" in given or "trainval" in given):
        return "test"
    return None


def needed(split: str, given: Collection[str], where: str) -> str:
    """Return which of the given parts serves as a split.

    Raises:
        DataError: none does.
    """
    found = serving(split, given)
    if found is None:
        has = f"only {', '.join(map(repr, given))}" if given else "no splits of its own"
        raise DataError(f"The set {where!r} has no split {split!r}, it has {has}. Name one of those, or none for all.")
    return found


def check_split(split: str) -> None:
    """Refuse a name that is no split.

    Raises:
        UsageError: it is none of train, val and test.
    """
    known = get_args(Split)
    if split not in known:
        raise UsageError(f"Unknown split {split!r}.{suggest(split, known)} Choose from: {', '.join(known)}.")
