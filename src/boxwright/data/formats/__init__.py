"""Annotation formats: every reader gives the same `Records`, every writer takes them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast, get_args

from boxwright.core.errors import DataError, UsageError, check_choice
from boxwright.core.files import require_file
from boxwright.data.formats.base import Fault, Format, Layout, Split
from boxwright.data.formats.coco import CocoLayout, json_files, write_coco_folder
from boxwright.data.formats.files import CopyMode, Progress, only_images
from boxwright.data.formats.shard_files import IMAGES_PER_SHARD, ShardFormat, write_shards
from boxwright.data.formats.voc import VocLayout, write_voc
from boxwright.data.formats.yolo import YoloLayout, write_yolo
from boxwright.data.records import PathText, Records
from boxwright.vision.decode import list_images

__all__ = [
    "CopyMode", "Fault", "Format", "Layout", "ShardFormat", "find_layout", "read_records", "write_records",
]  # fmt: skip

_NEEDED = (
    "a COCO json beside the images, a YOLO data.yaml with labels/ beside images/, or "
    "Pascal VOC Annotations/ beside JPEGImages/"
)


def read_records(
    path: PathText,
    *,
    split: str | None = None,
    names: Sequence[str] | None = None,
    format: Format | None = None,
    faults: list[Fault] | None = None,
    allow_outside: bool = False,
) -> Records:
    """Return the set at a path, in any known format.

    The path is a COCO json, a YOLO `data.yaml`, a text file that lists images, or a folder that holds a set in the
    layout of COCO, Pascal VOC or YOLO.

    Args:
        path: where the set is.
        split: the part to read: "train", "val" or "test". None takes all parts; of a COCO set, the only json.
        names: the class names in the order of the class ids. Needed if no file names the classes.
        format: "coco", "voc" or "yolo", if a folder can be read in several ways.
        faults: collects what is wrong in the labels, and what is wrong is left out. Without it the first error is
            raised.
        allow_outside: also read images and lists that the set's files name outside of its folder.

    Raises:
        DataError: there is nothing at the path, nothing in a known format, no such split, more than one way to read
            it, a label is wrong, or something outside of the folder is named.
    """
    return find_layout(path, format, allow_outside=allow_outside).read(split, names, faults)


def find_layout(path: PathText, format: Format | None = None, *, allow_outside: bool = False) -> Layout:
    """Return the layout of the set at a path: a json, a yaml, a list of images, or a folder.

    Args:
        path: where the set is.
        format: "coco", "voc" or "yolo", if a folder can be read in several ways.
        allow_outside: whether the layout reads what the set's files name outside of its folder.

    Raises:
        DataError: nothing in a known format is there, or the folder can be read in several ways.
        UsageError: the format is unknown.
    """
    if format is not None:
        check_choice("format", format, get_args(Format))
    place = Path(os.path.abspath(path))
    if not place.exists():
        raise DataError(f"There is no data set at {str(path)!r}. Check the path.")
    if not place.is_dir():
        try:
            require_file(place)
        except OSError as error:
            raise DataError(f"{str(path)!r} can't be a data set: {error.strerror}. Check the path.") from error
    layouts: dict[str, Layout | None] = {
        name: layout.find(place, allow_outside)
        for name, layout in (("coco", CocoLayout), ("voc", VocLayout), ("yolo", YoloLayout))
        if format in (None, name)
    }
    found = {name: layout for name, layout in layouts.items() if layout is not None}
    if len(found) > 1:
        ways = " and ".join(f"{name} ({os.path.relpath(way.evidence, place)!r})" for name, way in found.items())
        raise DataError(
            f"The folder {str(path)!r} can be read in {len(found)} ways: {ways}. Name the json or yaml file itself, "
            f"or give the format: {' or '.join(repr(name) for name in found)}."
        )
    if found:
        return next(iter(found.values()))
    if place.is_file():
        raise DataError(
            f"{str(path)!r} is not an annotation file in a known format. "
            "Name a COCO json, a YOLO data.yaml, a text file that lists images, or a folder."
        )
    # A single json is taken as it is: if something is wrong with it, reading it says what.
    files = json_files(place) if format in (None, "coco") else []
    if len(files) == 1:
        return CocoLayout(place=place, files={"": (files[0],)}, allow_outside=allow_outside)
    if format is not None:
        raise DataError(
            f"The folder {str(path)!r} holds no set in the format {format!r}. Check the path or the format."
        )
    images = len(list_images(place, recursive=True))
    what = f"holds {images} images but no labels" if images else "holds neither images nor labels"
    raise DataError(f"The folder {str(path)!r} {what} in a known format. It needs {_NEEDED}.")


def write_records(
    records: Records,
    folder: PathText,
    format: Format | ShardFormat,
    *,
    split: str = "train",
    images: CopyMode = "copy",
    shard_images: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Write a set with its images to a folder, in the layout of a format; files that are not images are left out.

    COCO gets `annotations/instances_<split>.json` and `images/<split>/`; for the others see `write_voc`, `write_yolo`
    and `write_shards`. Several splits may go to one folder, one call each. Return how many images were written;
    `progress` is called with the number of images copied and of all.

    Raises:
        DataError: a file can't be written, none is an image, or the set does not fit what is in the folder.
        UsageError: the format, split or way to copy images is unknown, or does not go with the format.
    """
    check_choice("format", format, (*get_args(Format), *get_args(ShardFormat)))
    check_choice("split", split, get_args(Split))
    check_choice("images", images, get_args(CopyMode))
    in_shards = format in get_args(ShardFormat)
    if in_shards and images == "link":
        raise UsageError(f"format={format!r} holds the images themselves, which can't be linked. Leave out the links.")
    if shard_images is not None and not in_shards:
        raise UsageError(f"shard_images={shard_images!r} is for webdataset and parquet, not for {format!r}.")
    good = only_images(records)
    if in_shards:
        size = IMAGES_PER_SHARD if shard_images is None else shard_images
        write_shards(good, Path(folder), split, cast("ShardFormat", format), shard_images=size, progress=progress)
    else:
        write = {"coco": write_coco_folder, "voc": write_voc, "yolo": write_yolo}[format]
        write(good, Path(folder), split, images, progress)
    return len(good)
