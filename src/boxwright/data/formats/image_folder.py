"""Where the images of an annotation file are."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError


def image_roots(file: Path) -> list[Path]:
    """Return the folders in which the images of an annotation file are looked for, the likeliest first.

    Example:
        >>> roots = image_roots(Path("/coco/annotations/instances_val2017.json"))
        >>> Path("/coco/val2017") in roots, Path("/coco/annotations/images") in roots
        (True, True)
    """
    # Absolute, or "instances.json" would have no folder above it.
    file = Path(os.path.abspath(file))
    words = file.stem.split("_")
    splits = [
        *("_".join(words[i:]) for i in range(len(words))),
        *("_".join(words[:i]) for i in range(1, len(words))),
    ]  # fmt: skip
    bases = (file.parent, file.parent.parent)
    roots = [base / inner / split for split in splits if split for base in bases for inner in ("", "images")]
    roots += [base / inner for base in bases for inner in ("images", "")]
    return list(dict.fromkeys(roots))


def find_images(file: Path, names: Sequence[str]) -> tuple[Path, NDArray[np.bool_]]:
    """Return the folder that holds most of the images of an annotation file, and which of them it holds.

    Raises:
        DataError: none of them is anywhere.
    """
    # Whole folders are listed because asking a network disk for 100,000 files one by one is slow.
    listings: dict[str, frozenset[str]] = {}

    def exists(root: Path, name: str) -> bool:
        folder, base = os.path.split(os.path.join(root, name))
        if folder not in listings:
            try:
                listings[folder] = frozenset(os.listdir(folder))
            except (OSError, ValueError):
                listings[folder] = frozenset()
        return base in listings[folder]

    roots = image_roots(file)
    best, best_found = roots[-1], np.zeros(len(names), np.bool_)
    for root in roots:
        found = np.array([exists(root, name) for name in names], np.bool_)
        if found.sum() > best_found.sum():
            best, best_found = root, found
        if found.all():
            break
    if not best_found.any():
        places = ", ".join(repr(str(r)) for r in roots if r.is_dir())
        raise DataError(
            f"None of the {len(names)} images of {str(file)!r} was found, the first being {names[0]!r}. "
            f"Looked in {places}. Put the images into {str(file.parent / 'images')!r}."
        )
    return best, best_found
