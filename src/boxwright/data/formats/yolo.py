"""YOLO, one text file an image and a `data.yaml`: `read_yolo` and `write_yolo`."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from boxwright.core.errors import DataError
from boxwright.data.formats.faults import Fault, note
from boxwright.data.formats.files import (
    Bring,
    bring_images,
    exported_names,
    label_stems,
    read_text,
    some,
    write_text,
)
from boxwright.data.formats.splits import SPLIT_FOLDERS, check_split
from boxwright.data.formats.yolo_folder import CLASS_FILE, find_yolo, label_folder, list_source, load_yaml
from boxwright.data.formats.yolo_text import YoloLabel, format_label, parse_label
from boxwright.data.header import read_sizes_hw
from boxwright.data.records import PathText, Records
from boxwright.vision.decode import IMAGE_SUFFIXES

_log = logging.getLogger(__name__)


def read_yolo(
    path: PathText,
    split: str | None = None,
    *,
    names: Sequence[str] | None = None,
    faults: list[Fault] | None = None,
) -> Records:
    """Return the images and boxes of a YOLO set.

    The path is a `data.yaml`, a folder with one, a text file that lists images, or a folder of images. Labels are in
    `labels/` where the images are in `images/`, else beside the images. An image without a label file has no boxes.
    A line with a polygon becomes the box around it. Images that a list names and that are not there, and label files
    without an image, are left out, logged, and named in `Records.missing`.

    The format gives parts of the image, so the size of each image is read from its header. An image that can't be read
    stays in the set, without size and boxes: whoever loads it will say what is wrong.

    Args:
        path: where the set is.
        split: "train", "val" or "test" of the yaml, or folders of these names. None takes all of them.
        names: the class names by class id, where no yaml or `classes.txt` says them, or to replace those.
        faults: gets all that is wrong in the label files. Without it the first error is raised.

    Raises:
        DataError: there is no such set or split, nothing names the classes, or a label file is wrong.
    """
    yolo = find_yolo(Path(path))
    if yolo is None:
        raise DataError(f"There is no YOLO set at {str(path)!r}: no data.yaml and no label files. Check the path.")
    classes = tuple(names) if names is not None else yolo.names
    if classes is None:
        raise DataError(
            f"Nothing names the classes of {str(yolo.place)!r}. "
            f"Put 'names' into a data.yaml, or one name a line into {CLASS_FILE!r}."
        )
    sources = yolo.choose(split)
    listed = [image for source in sources for image in list_source(source)]
    if len(sources) > 1:
        # Sources may overlap. One list that names an image twice is a fault, and stays for the linter to find.
        listed = list(dict.fromkeys(listed))
    root = _root(sources, listed)
    folders = {folder: _Folder.look(folder) for folder in sorted({image.parent for image in listed})}
    images = [image for image in listed if image.name in folders[image.parent].images]
    missing = [os.path.relpath(image, root) for image in listed if image.name not in folders[image.parent].images]
    missing += [os.path.relpath(label, root) for folder in folders.values() for label in folder.orphans()]
    if not images:
        raise DataError(
            f"None of the {len(listed)} images of {str(path)!r} was found"
            f"{f', the first being {str(listed[0])!r}' if listed else ''}. Check the path."
        )
    if missing:
        _log.warning(
            "%d images or labels of %r have no counterpart and are left out: %s.",
            len(missing), str(path), some(missing),
        )  # fmt: skip

    labels = [_read_label(image, folders[image.parent], len(classes), faults) for image in images]
    sizes = [size or (0, 0) for size in read_sizes_hw(images)]
    unreadable = [str(image) for image, size in zip(images, sizes, strict=True) if size == (0, 0)]
    if unreadable:
        _log.warning("%d images can't be read, so their boxes are unknown: %s.", len(unreadable), some(unreadable))
        empty = YoloLabel()
        labels = [label if size != (0, 0) else empty for label, size in zip(labels, sizes, strict=True)]
    pixels = [label.in_pixels(size) for label, size in zip(labels, sizes, strict=True)]
    records = Records.from_lists(
        root=root,
        paths=[os.path.relpath(image, root) for image in images],
        boxes_xyxy=[boxes for boxes, _ in pixels],
        areas=[areas for _, areas in pixels],
        class_ids=[label.class_ids for label in labels],
        names=classes,
        category_ids=yolo.category_ids if names is None else None,
        sizes_hw=sizes,
    )
    return replace(records, missing=tuple(missing))


def write_yolo(records: Records, folder: PathText, *, split: str = "train", images: Bring = "copy") -> None:
    """Write a set as `images/<split>/`, `labels/<split>/` and `data.yaml`.

    `read_yolo` gives the same images, sizes, boxes and classes back, in the same order, and the category ids. Image ids
    and mask areas have no place in this format; crowds are left out, with a warning that counts them. Several splits
    may go to one folder, one call each.

    Raises:
        DataError: a file can't be written, the folder holds a set with other classes, or the size of an image is
            neither in the set nor to be read from the image.
    """
    check_split(split)
    root = Path(folder)
    names = exported_names(records)
    stems = label_stems(names)
    description = _description(records, root / "data.yaml", split)
    # By the images themselves where that is possible: readers multiply by that size, whatever the labels said.
    measured = list(read_sizes_hw([records.path(i) for i in range(len(records))]))
    sizes = [size or records.size_hw(i) for i, size in enumerate(measured)]
    for i, size in enumerate(sizes):
        if not min(size):
            raise DataError(
                f"The size of {str(records.path(i))!r} is unknown: the labels don't say it and the image can't be "
                "read. Leave it out."
            )
    bring_images(records, names, root / "images" / split, images)
    for i, stem in enumerate(stems):
        single = ~records.crowd_of(i)
        text = format_label(records.boxes(i)[single], records.class_ids_of(i)[single], sizes[i])
        write_text(root / "labels" / split / f"{stem}.txt", text)
    if records.crowd.any():
        _log.warning("%d crowds are left out: YOLO labels have no place for them.", int(records.crowd.sum()))
    # A folder is read in the order of its names; another order needs a list.
    paths = [Path(root, "images", split, name) for name in names]
    if paths != sorted(set(paths)):
        write_text(root / f"{split}.txt", "".join(f"./images/{split}/{name}\n" for name in names))
        description[split] = f"{split}.txt"
    write_text(root / "data.yaml", yaml.safe_dump(description, sort_keys=False, allow_unicode=True))


@dataclass(frozen=True, slots=True)
class _Folder:
    """The files of a folder of images, and those of the folder with their labels."""

    images: frozenset[str]
    labels: Path
    texts: frozenset[str]

    @classmethod
    def look(cls, folder: Path) -> "_Folder":
        labels = label_folder(folder)
        return cls(_files(folder), labels, frozenset(f for f in _files(labels) if f.endswith(".txt")))

    def orphans(self) -> list[Path]:
        """Return the label files without an image."""
        stems = {os.path.splitext(f)[0] for f in self.images if os.path.splitext(f)[1].lower() in IMAGE_SUFFIXES}
        texts = (t for t in self.texts if t != CLASS_FILE and not t.lower().startswith("readme"))
        return [self.labels / text for text in sorted(texts) if os.path.splitext(text)[0] not in stems]


def _read_label(image: Path, folder: _Folder, classes: int, faults: list[Fault] | None) -> YoloLabel:
    name = f"{image.stem}.txt"
    if name not in folder.texts:
        message = f"The image {str(image)!r} has no label file and is taken to have no boxes."
        note(faults, Fault(rule="unlabelled-image", severity="warning", path=str(image), message=message))
        return YoloLabel()
    file = folder.labels / name
    label = parse_label(read_text(file), classes)
    for rule, sentence in label.wrong:
        note(faults, Fault(rule=rule, severity="error", path=str(image), message=f"{str(file)!r}: {sentence}"))
    return label


def _root(sources: Sequence[Path], images: Sequence[Path]) -> Path:
    """Return the folder that paths are relative to: what all sources have in common."""
    if all(source.is_dir() for source in sources) or not images:
        return Path(os.path.commonpath(sources))
    common = Path(os.path.commonpath([image.parent for image in images]))
    parts = common.parts
    for at in reversed(range(len(parts))):
        # A list may name the images of one folder deep inside only; the set still begins at `images/`.
        if parts[at] == "images":
            within = parts[at + 1 : at + 2]
            return Path(*parts[: at + 1], *(within if within and within[0] in SPLIT_FOLDERS else ()))
    return common


def _files(folder: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


def _description(records: Records, file: Path, split: str) -> dict[str, Any]:
    """Return what `data.yaml` is to say: what it said so far, and the new split."""
    known: dict[str, Any] = {}
    if file.exists():
        before = find_yolo(file)
        if before is None or before.names != records.names:
            raise DataError(f"{str(file)!r} lists other classes than the set to be written. Choose an empty folder.")
        known = load_yaml(file)
    description: dict[str, Any] = known | {split: f"images/{split}", "names": dict(enumerate(records.names))}
    if records.category_ids != tuple(range(1, len(records.names) + 1)):
        description["category_ids"] = list(records.category_ids)
    return description
