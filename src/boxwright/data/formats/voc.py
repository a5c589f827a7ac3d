"""Pascal VOC: one xml an image, `read_voc` and `write_voc`."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import numpy as np

from boxwright.core.errors import DataError, UsageError
from boxwright.data.decode import list_images
from boxwright.data.formats.faults import Fault, note
from boxwright.data.formats.files import Bring, bring_images, exported_names, label_stems, read_lines, write_text
from boxwright.data.formats.voc_folder import VocFolder, find_voc
from boxwright.data.records import PathText, Records

_log = logging.getLogger(__name__)

Difficult = Literal["keep", "ignore"]
"""What objects marked difficult are: boxes like others (`keep`), or crowds that no score counts (`ignore`)."""

_CORNERS = ("xmin", "ymin", "xmax", "ymax")


def read_voc(
    path: PathText,
    split: str | None = None,
    *,
    names: Sequence[str] | None = None,
    difficult: Difficult = "keep",
    faults: list[Fault] | None = None,
) -> Records:
    """Return the images and boxes of a Pascal VOC set.

    The path is the folder with `Annotations/` and `JPEGImages/` (or `images/`), the folder above it, or a folder of xml
    files beside their images. An xml and its image have the same name but for the ending.

    Coordinates are taken as they are written. The original VOC counts pixels from 1, and its boxes lie half a pixel to
    the lower right of ours; most tools that write this format count from 0, and nothing in a file says which it is.

    Args:
        path: where the set is.
        split: a list in `ImageSets/Main` ("train", "val", "trainval", "test"), or a folder of that name with its own
            xml files. None takes every list; where there are no lists, every xml.
        names: the classes in their order. By default those of `labels.txt` or `classes.txt` in the set's folder, else
            all that occur in the whole set, in the order of the alphabet.
        difficult: whether difficult objects count.
        faults: gets what is wrong in label files. Without it the first error is raised.

    Raises:
        DataError: there is no such set or split, or an xml is wrong.
    """
    if difficult not in ("keep", "ignore"):
        raise UsageError(f"difficult={difficult!r} is unknown. Choose from: 'keep', 'ignore'.")
    voc = find_voc(Path(path))
    if voc is None:
        raise DataError(f"There is no Pascal VOC set at {str(path)!r}: no folder with xml files. Check the path.")
    chosen = voc.choose(split)
    # Every xml is read, not only those of the split: class ids must be the same in all splits.
    parsed = {part: _read_folder(part.labels) for part in voc.parts.values()}
    classes = list(names) if names is not None else _listed_names(voc)
    if classes is None:
        classes = sorted({o.name for part in parsed.values() for a in part.values() for o in a.objects})
    if not classes:
        raise DataError(f"No xml of {str(voc.root)!r} has an object, so there are no class names. Give them as names.")
    root = chosen[0][0].images if len(chosen) == 1 else voc.root
    packer = _Packer(root, classes, difficult, faults)
    for part, listed in chosen:
        packer.add(part, parsed[part], listed)
    return packer.records(str(path))


def write_voc(records: Records, folder: PathText, *, split: str = "train", images: Bring = "copy") -> None:
    """Write a set as `Annotations/`, `JPEGImages/`, `ImageSets/Main/<split>.txt` and `labels.txt`.

    `read_voc` gives the same images, sizes, boxes, classes and crowds back, in the same order. Image ids, category ids
    and mask areas have no place in this format. Crowds are marked `iscrowd`, and difficult for other readers. Several
    splits may go to one folder, one call each.

    Raises:
        DataError: a file can't be written, or the folder holds a set with other classes.
    """
    root = Path(folder)
    names = exported_names(records)
    stems = label_stems(names)
    labels = root / "labels.txt"
    if labels.exists() and read_lines(labels) != list(records.names):
        raise DataError(f"{str(labels)!r} lists other classes than the set to be written. Choose an empty folder.")
    bring_images(records, names, root / "JPEGImages", images)
    for i, (name, stem) in enumerate(zip(names, stems, strict=True)):
        write_text(root / "Annotations" / f"{stem}.xml", _to_xml(records, i, name))
    write_text(root / "ImageSets" / "Main" / f"{split}.txt", "".join(f"{stem}\n" for stem in stems))
    write_text(labels, "".join(f"{name}\n" for name in records.names))


@dataclass(slots=True, kw_only=True)
class _Object:
    name: str
    box_xyxy: list[float]
    difficult: bool
    crowd: bool


@dataclass(slots=True, kw_only=True)
class _Annotation:
    """What one xml says, with a sentence for each thing in it that makes no sense."""

    file: Path
    filename: str = ""
    size_hw: tuple[int, int] = (0, 0)
    objects: list[_Object] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class _Packer:
    """Gathers images and boxes of several folders."""

    def __init__(self, root: Path, names: list[str], difficult: Difficult, faults: list[Fault] | None) -> None:
        self._root, self._names, self._difficult, self._faults = root, names, difficult, faults
        self._class_of = {name: n for n, name in enumerate(names)}
        self._paths: list[str] = []
        self._sizes: list[tuple[int, int]] = []
        self._objects: list[list[_Object]] = []
        self._missing: list[str] = []

    def add(self, part: VocPart, annotations: dict[str, _Annotation], listed: list[str] | None) -> None:
        images: dict[str, list[str]] = {}
        for path in list_images(part.images, recursive=True):
            name = path.relative_to(part.images).as_posix()
            images.setdefault(os.path.splitext(name)[0], []).append(name)
        for stem in images:
            if stem not in annotations and (listed is None or stem in listed):
                self._note("unlabelled-image", part.images / images[stem][0], "there is no xml for it: left out")
        below = os.path.relpath(part.images, self._root)
        for entry in annotations if listed is None else listed:
            stem = _stem(entry, annotations, images)
            annotation = annotations.get(stem)
            image = _image_of(stem, annotation, images)
            if image is None:
                self._missing.append(os.path.normpath(os.path.join(below, (annotation and annotation.filename) or stem)))
            elif annotation is not None:
                self._add_image(part.images / image, os.path.normpath(os.path.join(below, image)), annotation)

    def _add_image(self, path: Path, name: str, annotation: _Annotation) -> None:
        for sentence in annotation.wrong:
            self._note("bad-label", path, f"{str(annotation.file)!r}: {sentence}")
        known = []
        for thing in annotation.objects:
            if thing.name in self._class_of:
                known.append(thing)
            else:
                sentence = f"{str(annotation.file)!r}: {thing.name!r} is none of the {len(self._names)} classes."
                self._note("unknown-class", path, sentence)
        self._paths.append(name)
        self._sizes.append(annotation.size_hw)
        self._objects.append(known)

    def records(self, where: str) -> Records:
        ...
