"""Annotation formats: every reader gives the same `Records`, every writer takes them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from boxwright.core.errors import DataError, UsageError
from boxwright.data.formats.coco import read_coco, write_coco
from boxwright.data.formats.coco_faults import read_coco_with_faults
from boxwright.data.formats.faults import Fault
from boxwright.data.formats.files import Bring, bring_images, exported_names, some
from boxwright.data.formats.layout import Format, check_format, find_layout
from boxwright.data.formats.splits import check_split
from boxwright.data.formats.voc import read_voc, write_voc
from boxwright.data.formats.voc_folder import VocFolder
from boxwright.data.formats.yolo import read_yolo, write_yolo
from boxwright.data.formats.yolo_folder import YoloFolder
from boxwright.data.records import PathText, Records, pack_paths

__all__ = ["Bring", "Fault", "Format", "given_splits", "read_records", "with_names", "write_records"]


def read_records(
    path: PathText,
    *,
    split: str | None = None,
    names: Sequence[str] | None = None,
    format: Format | None = None,
    faults: list[Fault] | None = None,
) -> Records:
    """Return the set at a path, in whatever known format it is.

    The path is a COCO json, a YOLO `data.yaml`, a text file that lists images, or a folder that holds a set in the
    layout of COCO, Pascal VOC or YOLO.

    Args:
        path: where the set is.
        split: the part to read: "train", "val" or "test". None takes all parts; of a COCO set, the only json.
        names: the class names in the order that class ids are to have. Needed where nothing else names the classes.
        format: "coco", "voc" or "yolo", where a folder can be read in several ways.
        faults: gets all that is wrong in the labels, and what is wrong is left out. Without it the first error is
            raised.

    Raises:
        DataError: there is nothing at the path, nothing in a known format, no such split, more than one way to read
            it, or a label is wrong.
    """
    layout = find_layout(Path(path), format)
    if isinstance(layout, VocFolder):
        return read_voc(path, split, names=names, faults=faults)
    if isinstance(layout, YoloFolder):
        return read_yolo(path, split, names=names, faults=faults)
    file = layout.choose(split)
    records = read_coco(file) if faults is None else read_coco_with_faults(file, faults)
    return records if names is None else with_names(records, names)


def given_splits(path: PathText, *, format: Format | None = None) -> tuple[str, ...]:
    """Return the splits that the set at a path comes with: some of train, val, trainval and test, or none.

    Raises:
        DataError: as `read_records`.
    """
    return find_layout(Path(path), format).splits


def write_records(
    records: Records, folder: PathText, format: Format, *, split: str = "train", images: Bring = "copy"
) -> None:
    """Write a set with its images to a folder, in the layout of a format.

    COCO gets `annotations/instances_<split>.json` and `images/<split>/`; for the others see `write_voc` and
    `write_yolo`. Several splits may go to one folder, one call each.

    Raises:
        DataError: a file can't be written, or the set does not fit what is in the folder.
        UsageError: the format or split is unknown.
    """
    check_format(format)
    check_split(split)
    if format == "voc":
        write_voc(records, folder, split=split, images=images)
    elif format == "yolo":
        write_yolo(records, folder, split=split, images=images)
    else:
        root, names = Path(folder, "images", split), exported_names(records)
        bring_images(records, names, root, images)
        path_bytes, path_offsets = pack_paths(names)
        moved = replace(records, root=root, path_bytes=path_bytes, path_offsets=path_offsets)
        file = Path(folder, "annotations", f"instances_{split}.json")
        # Where this fails, writing the json says why.
        with suppress(OSError):
            file.parent.mkdir(exist_ok=True)
        write_coco(moved, file)


def with_names(records: Records, names: Sequence[str]) -> Records:
    """Return the set with its classes in another order, matched by name; new names may come in.

    Classes that the set knows keep their category ids, the others get free ones.

    Raises:
        DataError: a class that has boxes is not among the names.

    Example:
        >>> cats = Records.from_lists(
        ...     root=".", paths=["a.jpg"], boxes_xyxy=[[[0, 0, 9, 9]]], class_ids=[[0]], names=["cat", "dog"]
        ... )
        >>> turned = with_names(cats, ["dog", "cow", "cat"])
        >>> turned.class_ids.tolist(), turned.category_ids
        ([2], (2, 3, 1))
    """
    if tuple(names) == records.names:
        return records
    if len(set(names)) != len(names):
        raise UsageError(f"names={list(names)!r}: a class is named twice.")
    new_id = {name: n for n, name in enumerate(names)}
    lookup = np.array([new_id.get(name, -1) for name in records.names], np.int32)
    class_ids = lookup[records.class_ids]
    if (class_ids < 0).any():
        lost = [records.names[i] for i in np.unique(records.class_ids[class_ids < 0])]
        raise DataError(
            f"The set has boxes of {some(lost)}, which is not among the classes {some(list(names))}. Add it to them."
        )
    known = dict(zip(records.names, records.category_ids, strict=True))
    free = iter(range(max(records.category_ids, default=0) + 1, 2**62))
    return replace(
        records,
        class_ids=class_ids,
        names=tuple(names),
        category_ids=tuple(known[name] if name in known else next(free) for name in names),
    )
