"""The files of a set in a folder: reading and writing label text, and bringing images along."""

import contextlib
import filecmp
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from boxwright.core.errors import DataError, UsageError
from boxwright.data.records import Records

Bring = Literal["copy", "link"]
"""How images get into a written set: `copy` them, or make a symbolic `link` to each."""


def read_text(file: Path) -> str:
    """Return the text of a file; a byte order mark is dropped.

    Raises:
        DataError: it can't be read.
    """
    try:
        # Not strict: lists may hold file names that are no valid UTF-8.
        return file.read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise DataError(f"Cannot read {str(file)!r}: {error.strerror}. Check the file.") from error


def read_lines(file: Path) -> list[str]:
    """Return the lines of a file that hold something, without the space around them.

    Raises:
        DataError: it can't be read.
    """
    return [line for line in (line.strip() for line in read_text(file).split("\n")) if line]


def write_text(file: Path, text: str) -> None:
    """Write a file whole or not at all, and make its folder.

    Raises:
        DataError: it can't be written.
    """
    half_written = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        half_written.write_bytes(text.encode("utf-8", "surrogateescape"))
        half_written.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            half_written.unlink()
        raise DataError(f"Cannot write {str(file)!r}: {error.strerror}. Choose another place.") from error


def exported_names(records: Records) -> list[str]:
    """Return the path that each image gets below the new image folder: its own, where that leads downwards.

    Example:
        >>> far = Records.from_lists(
        ...     root="set", paths=["../x/a.jpg", "../x/b/c.jpg"], boxes_xyxy=[[], []], class_ids=[[], []], names=["cat"]
        ... )
        >>> exported_names(far)
        ['a.jpg', 'b/c.jpg']
    """
    names = [os.path.normpath(records.relative_path(i)) for i in range(len(records))]
    if not any(os.path.isabs(name) or name.split(os.sep)[0] == os.pardir for name in names):
        return names
    full = [os.path.abspath(records.path(i)) for i in range(len(records))]
    top = os.path.commonpath([os.path.dirname(path) for path in full])
    return [os.path.relpath(path, top) for path in full]


def label_stems(names: Sequence[str]) -> list[str]:
    """Return each name without its ending, which is what its label file is called.

    Raises:
        DataError: two images would share a label file.
    """
    stems = [os.path.splitext(name)[0] for name in names]
    owner: dict[str, str] = {}
    for stem, name in zip(stems, names, strict=True):
        if owner.setdefault(stem, name) != name:
            raise DataError(
                f"The images {owner[stem]!r} and {name!r} differ in their ending only and would share one label file. "
                "Rename one of them."
            )
    return stems


def bring_images(records: Records, names: Sequence[str], folder: Path, how: Bring) -> None:
    """Copy or link every image to `folder / name`; one that is there already stays.

    Raises:
        DataError: an image can't be written, or another one has its name.
        UsageError: `how` is neither "copy" nor "link".
    """
    if how not in ("copy", "link"):
        raise UsageError(f"images={how!r} is no way to bring images. Choose from: 'copy', 'link'.")
    for parent in {(folder / name).parent for name in names}:
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"Cannot make {str(parent)!r}: {error.strerror}. Choose another folder.") from error
    for i, name in enumerate(names):
        source, target = records.path(i), folder / name
        try:
            if not target.exists():
                if how == "link":
                    target.symlink_to(os.path.realpath(source))
                else:
                    shutil.copyfile(source, target)
                continue
            same = os.path.samefile(source, target) or filecmp.cmp(source, target, shallow=False)
        except OSError as error:
            raise DataError(
                f"Cannot put {str(source)!r} at {str(target)!r}: {error.strerror}. Check both places."
            ) from error
        if not same:
            raise DataError(
                f"Cannot put {str(source)!r} at {str(target)!r}: another image is there. "
                "Write to an empty folder, or rename one of them."
            )


def some(names: Sequence[str], limit: int = 5) -> str:
    """Return the first few names, and how many more there are.

    Example:
        >>> some(["a", "b", "c"], limit=2)
        "'a', 'b' and 1 more"
    """
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
