"""Train and validation parts: those that a set comes with, or a division by the images' names."""

import hashlib
import logging

import numpy as np

from boxwright.core.errors import DataError, UsageError
from boxwright.data.formats import find_layout
from boxwright.data.formats.base import resolve_split
from boxwright.data.records import PathText, Records

_log = logging.getLogger(__name__)

DEFAULT_VAL = 0.2
"""The fraction of the images for validation if the set has no split of its own."""


def read_splits(
    path: PathText, *, val: float | None = None, seed: int = 0, allow_outside: bool = False
) -> tuple[Records, Records]:
    """Return the training and the validation part of a set, with the same classes.

    A set with both parts (COCO `instances_train*.json` and `instances_val*.json`, VOC lists, `train` and `val` in a
    YOLO yaml) keeps them; `trainval` and `test` are used if one is missing. Any other is divided by `split_records`.

    Args:
        path: where the set is, as for `read_records`.
        val: the fraction of the images for validation, 0.2 by default; 0 for none. Refused for a set with its own
            parts.
        seed: another seed gives another division.
        allow_outside: also read what the set's files name outside of its folder.

    Raises:
        DataError: the set can't be read or divided, or its parts disagree on the classes.
        UsageError: `val` is out of range, or is given for a set with its own parts.
    """
    layout = find_layout(path, allow_outside=allow_outside)
    train_part, val_part = (resolve_split(split, layout.splits) for split in ("train", "val"))
    if train_part is None or val_part is None:
        # A lone part is all there is; its name does not matter.
        only = layout.splits[0] if len(layout.splits) == 1 else train_part
        whole = layout.read(only)
        return split_records(whole, val=DEFAULT_VAL if val is None else val, seed=seed)
    if val is not None:
        raise UsageError(
            f"val={val!r} asks to divide {str(path)!r}, which has its own parts {train_part!r} and {val_part!r}. "
            "Leave val out to use them, or name the json or list of the part to divide."
        )
    train = layout.read("train")
    other = layout.read("val")
    _log.info("Parts of the set: %r with %d images, %r with %d.", train_part, len(train), val_part, len(other))
    try:
        return train, other.with_names(train.names)
    except DataError as error:
        raise DataError(f"{train_part!r} and {val_part!r} of {str(path)!r} differ in their classes. {error}") from error


def split_records(records: Records, *, val: float = DEFAULT_VAL, seed: int = 0) -> tuple[Records, Records]:
    """Return a set in two parts, the second with about `val` of the images; no image is in both.

    Only the name of an image and the seed decide, so an image stays on its side when others come or go. If one part
    would be empty, the nearest image moves over. With `val` 0 the second part is empty.

    Raises:
        DataError: there are fewer than two images to divide.
        UsageError: `val` is out of range.

    Example:
        >>> paths = [f"{i}.jpg" for i in range(10)]
        >>> ten = Records.from_lists(
        ...     root=".", paths=paths, boxes_xyxy=[[]] * 10, class_ids=[[]] * 10, names=["cat"]
        ... )
        >>> train, val = split_records(ten, val=0.3)
        >>> len(train) + len(val), min(len(train), len(val)) > 0
        (10, True)
    """
    if not 0 <= val < 1:
        raise UsageError(f"val={val!r} is not a fraction of a set. Use a number from 0 up to (not including) 1.")
    if val == 0:
        return records, records.select([])
    place = np.array([_place(records.relative_path(i), seed) for i in range(len(records))], np.float64)
    if len(np.unique(place)) < 2:
        raise DataError(
            f"A set of {len(records)} image(s) can't be divided into training and validation. "
            "Add images, or use val=0 to train without validation."
        )
    # The extremes are always on their own side, so that neither is empty.
    chosen = (place < val) | (place == place.min())
    chosen &= place < place.max()
    return records.select(~chosen), records.select(chosen)


def _place(name: str, seed: int) -> float:
    """Return a number from 0 to 1 that depends on the name and the seed only."""
    text = f"{seed}\n{name}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") / 2**64
