"""The files of a set: reading and writing label text, finding and copying images."""

import filecmp
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError, shorten
from boxwright.core.files import is_inside, read_bytes, require_file, whole_file, write_whole
from boxwright.core.log import get_logger
from boxwright.data.formats.base import outside
from boxwright.data.records import PathText, Records
from boxwright.data.shards import SHARD_SUFFIXES, read_encoded, shard_of
from boxwright.data.threads import READERS, map_threads
from boxwright.vision.size import is_image

_log = get_logger(__name__)

_MOST_TEXT = 1 << 30
_HEAD = 4096  # bytes that show whether a file is an image

CopyMode = Literal["copy", "link"]
"""How images get into a written set: `copy` them, or make a symbolic `link` to each."""

Progress = Callable[[int, int], None]
"""Called with the number of images done and of all."""


def read_text(file: Path, *, max_bytes: float = _MOST_TEXT) -> str:
    """Return the text of a file without a byte order mark."""
    try:
        # Not strict: lists may hold file names that are not valid UTF-8.
        return read_bytes(file, max_bytes=max_bytes).decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise DataError(f"Cannot read {str(file)!r}: {error.strerror}. Check the file.") from error
    except ValueError as error:  # a name with a NUL
        raise DataError(f"Cannot read {str(file)!r}: {error}. Check the name.") from error


def read_lines(file: Path) -> list[str]:
    """Return the lines of a file that are not blank, stripped."""
    return [line for line in (line.strip() for line in read_text(file).split("\n")) if line]


def write_text(file: Path, text: str | bytes, *, atomic: bool = True) -> None:
    """Write a file and make its folder; `atomic=False` is for one of many files, where a disk sync each is slow."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    try:
        if atomic:
            write_whole(file, data)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    except OSError as error:
        raise DataError(f"Cannot write {str(file)!r}: {error.strerror}. Choose another place.") from error


def write_pieces(file: Path, pieces: Iterable[bytes]) -> None:
    """Write a file atomically from pieces that need not be in memory together, and make its folder."""
    try:
        with whole_file(file) as draft, draft.open("wb") as out:
            out.writelines(pieces)
    except OSError as error:
        raise DataError(f"Cannot write {str(file)!r}: {error.strerror}. Choose another place.") from error


def list_files(folder: PathText) -> frozenset[str]:
    """Return the names in a folder, none for one that can't be listed."""
    try:
        return frozenset(os.listdir(folder))
    except (OSError, ValueError):
        return frozenset()


def exported_names(records: Records) -> list[str]:
    """Return the path that each image gets below the new image folder: its own, if that leads downwards.

    Example:
        >>> far = Records.from_lists(
        ...     root="set", paths=["../x/a.jpg", "../x/b/c.jpg"], boxes_xyxy=[[], []], class_ids=[[], []], names=["cat"]
        ... )
        >>> exported_names(far)
        ['a.jpg', 'b/c.jpg']
    """
    names = [os.path.normpath(records.relative_path(i)) for i in range(len(records))]
    if names and shard_of(records.path(0)) is not None:
        names = ["/".join((os.path.splitext(os.path.dirname(name))[0], os.path.basename(name))) for name in names]
    if not any(os.path.isabs(name) or name.split(os.sep)[0] == os.pardir for name in names):
        return names
    full = [os.path.abspath(records.path(i)) for i in range(len(records))]
    top = os.path.commonpath([os.path.dirname(path) for path in full])
    return [os.path.relpath(path, top) for path in full]


def label_stems(names: Sequence[str]) -> list[str]:
    """Return each name without its ending, which is the name of its label file."""
    stems = [os.path.splitext(name)[0] for name in names]
    owner: dict[str, str] = {}
    for stem, name in zip(stems, names, strict=True):
        if owner.setdefault(stem, name) != name:
            raise DataError(
                f"The images {owner[stem]!r} and {name!r} differ in their ending only and would share one label file. "
                "Rename one of them."
            )
    return stems


def only_images(records: Records) -> Records:
    """Return the set without the files that are not images by their content; those are logged.

    Raises:
        DataError: none is an image.
    """

    def looks_good(i: int) -> bool:
        path = records.path(i)
        try:
            if shard_of(path) is not None:
                return is_image(read_encoded(path)[:_HEAD])
            require_file(path)
            with path.open("rb") as file:
                return is_image(file.read(_HEAD))
        except (OSError, ValueError, DataError):
            return False

    # Waiting for the disk is most of the work, so there are more threads than cores.
    good = np.array(list(map_threads(looks_good, len(records), READERS)), np.bool_)
    if good.all():
        return records
    names = [records.relative_path(i) for i in np.flatnonzero(~good).tolist()]
    if not good.any():
        raise DataError(f"None of the {len(records)} files of the set is an image. First: {str(records.path(0))!r}.")
    _log.warning("%d files are left out, because they are not images: %s.", len(names), shorten(names))
    return records.select(good)


def copy_images(
    records: Records, names: Sequence[str], folder: Path, how: CopyMode, progress: Progress | None = None
) -> None:
    """Copy or link every image to `folder / name`; one that is there already stays."""
    for i, name in enumerate(names):
        source, target = records.path(i), folder / name
        what = f"Cannot put {str(source)!r} at {str(target)!r}:"
        try:
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                if shard_of(source) is not None:
                    target.write_bytes(read_encoded(source))
                elif how == "link":
                    target.symlink_to(os.path.realpath(source))
                else:
                    shutil.copyfile(source, target)
            elif (
                shard_of(source) is None
                and not os.path.samefile(source, target)
                and not filecmp.cmp(source, target, shallow=False)
            ):
                raise DataError(f"{what} another image is there. Write to an empty folder, or rename one of them.")
        except OSError as error:
            raise DataError(f"{what} {error.strerror}. Check both places.") from error
        if progress is not None:
            progress(i + 1, len(names))


def is_strange(name: str) -> bool:
    """Return whether a name may lead out of the folder that it is relative to."""
    return os.path.isabs(name) or os.pardir in name


def image_roots(file: Path) -> list[Path]:
    """Return the folders in which the images of a COCO json are looked for, the likeliest first.

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


def find_images(file: Path, names: Sequence[str], home: Path | None = None) -> tuple[Path, NDArray[np.bool_]]:
    """Return the folder that holds most of the images of a COCO json, and which of them it holds.

    Args:
        file: the json.
        names: of the images.
        home: the folder of the set: images are looked for only there. None for all the usual places.
    """
    # Whole folders are listed because asking a network disk for 100,000 files one by one is slow.
    listings: dict[str, frozenset[str]] = {}
    parts = [os.path.split(name) for name in names]

    def look_in(root: Path) -> NDArray[np.bool_]:
        found = np.zeros(len(names), np.bool_)
        here = {below: os.path.join(root, below) for below in {below for below, _ in parts}}
        if home is not None:
            here = {n: folder for n, folder in here.items() if not is_strange(n) or is_inside(folder, home)}
        for folder in here.values():
            if folder not in listings:
                listings[folder] = list_files(folder)
        # The labels say what is in a shard; it may be far away.
        shards = {n for n, folder in here.items() if n.endswith(SHARD_SUFFIXES) and os.path.isfile(folder)}
        if shards or any(listings[folder] for folder in here.values()):
            found[:] = [below in shards or (below in here and base in listings[here[below]]) for below, base in parts]
        return found

    roots = [root for root in image_roots(file) if home is None or is_inside(root, home)]
    best, best_found = roots[-1], np.zeros(len(names), np.bool_)
    for root in roots:
        found = look_in(root)
        if found.sum() > best_found.sum():
            best, best_found = root, found
        if found.all():
            break
    if not best_found.any():
        stray = next((name for name in names if home and is_strange(name) and not is_inside(best / name, home)), None)
        if home is not None and stray is not None:
            raise DataError(outside(file, stray, home))
        places = ", ".join(repr(str(r)) for r in roots if r.is_dir())
        where = "" if home is None else f", or add --allow-outside if they are outside of {str(home)!r}"
        raise DataError(
            f"None of the {len(names)} images of {str(file)!r} was found, the first being {names[0]!r}. "
            f"Looked in {places}. Put the images into {str(file.parent / 'images')!r}{where}."
        )
    return best, best_found
