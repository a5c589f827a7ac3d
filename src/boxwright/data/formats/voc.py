"""Pascal VOC, one xml an image: `read_voc` and `write_voc`."""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from boxwright.core.errors import DataError, UsageError
from boxwright.data.formats.faults import Fault, note
from boxwright.data.formats.files import (
    Bring,
    bring_images,
    exported_names,
    label_stems,
    read_lines,
    some,
    write_text,
)
from boxwright.data.formats.splits import check_split
from boxwright.data.formats.voc_folder import VocFolder, find_voc
from boxwright.data.formats.voc_xml import VocXml, format_voc_xml, parse_voc_xml
from boxwright.data.records import PathText, Records
from boxwright.vision.decode import list_images

_log = logging.getLogger(__name__)

Difficult = Literal["keep", "ignore"]
"""What objects marked difficult are: boxes like others (`keep`), or crowds that no score counts (`ignore`)."""


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
    files beside their images. An xml and its image have the same name but for the ending. Images without an xml are
    left out; an xml without an image is left out, logged, and named in `Records.missing`.

    Coordinates are taken as they are written. The original VOC counts pixels from 1 and includes the last one; most
    tools that write this format today count from 0, and nothing in a file says which it is.

    Args:
        path: where the set is.
        split: a list in `ImageSets/Main` ("train", "val", "trainval", "test"), or a folder of that name with its own
            xml files. None takes all of them.
        names: the classes in their order. By default those of `labels.txt` or `classes.txt` in the set's folder, else
            all that occur in the whole set, sorted.
        difficult: what objects marked difficult are.
        faults: gets all that is wrong in the xml files. Without it the first error is raised.

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
    parsed = {part.labels: _parse_folder(part.labels) for part in voc.parts.values()}
    classes = list(names) if names is not None else _listed_names(voc)
    if classes is None:
        classes = sorted({thing.name for part in parsed.values() for xml in part.values() for thing in xml.objects})
    if not classes:
        raise DataError(f"No xml of {str(voc.root)!r} has an object, so there are no class names. Give them as names.")

    root = chosen[0][0].images if len(chosen) == 1 else voc.root
    paths: list[str] = []
    xmls: list[VocXml] = []
    missing: list[str] = []
    for part, listed in chosen:
        xml_of, images = parsed[part.labels], _images_by_stem(part.images)
        below = os.path.relpath(part.images, root)
        stems = list(xml_of) if listed is None else [_known_stem(entry, xml_of, images) for entry in listed]
        for stem in stems:
            xml = xml_of.get(stem)
            image = _image_of(stem, xml, images)
            if image is None:
                missing.append(os.path.normpath(os.path.join(below, xml.filename if xml and xml.filename else stem)))
            elif xml is not None:
                paths.append(os.path.normpath(os.path.join(below, image)))
                xmls.append(xml)
        wanted = images if listed is None else stems
        for stem in sorted(set(wanted) & (set(images) - set(xml_of))):
            file = str(part.images / images[stem][0])
            message = f"The image {file!r} has no xml and is left out."
            note(faults, Fault(rule="unlabelled-image", severity="warning", path=file, message=message))
    if not paths:
        raise DataError(
            f"None of the {len(missing)} images of {str(path)!r} was found, the first being {some(missing, 1)}. "
            f"Put the images into {str(root)!r}."
        )
    if missing:
        _log.warning(
            "%d images that %r names are not in %r and are left out: %s.",
            len(missing), str(path), str(root), some(missing),
        )  # fmt: skip
    return replace(_pack(root, paths, xmls, classes, difficult, faults), missing=tuple(missing))


def write_voc(records: Records, folder: PathText, *, split: str = "train", images: Bring = "copy") -> None:
    """Write a set as `Annotations/`, `JPEGImages/`, `ImageSets/Main/<split>.txt` and `labels.txt`.

    `read_voc` gives the same images, sizes, boxes, classes and crowds back, in the same order. Image ids, category ids
    and mask areas have no place in this format. Several splits may go to one folder, one call each.

    Raises:
        DataError: a file can't be written, or the folder holds a set with other classes.
    """
    check_split(split)
    root = Path(folder)
    names = exported_names(records)
    stems = label_stems(names)
    labels = root / "labels.txt"
    if labels.exists() and read_lines(labels) != list(records.names):
        raise DataError(f"{str(labels)!r} lists other classes than the set to be written. Choose an empty folder.")
    bring_images(records, names, root / "JPEGImages", images)
    for i, (name, stem) in enumerate(zip(names, stems, strict=True)):
        text = format_voc_xml(records.image(i), os.path.basename(name), records.names)
        write_text(root / "Annotations" / f"{stem}.xml", text)
    write_text(root / "ImageSets" / "Main" / f"{split}.txt", "".join(f"{stem}\n" for stem in stems))
    write_text(labels, "".join(f"{name}\n" for name in records.names))


def _pack(
    root: Path,
    paths: Sequence[str],
    xmls: Sequence[VocXml],
    names: Sequence[str],
    difficult: Difficult,
    faults: list[Fault] | None,
) -> Records:
    class_of = {name: n for n, name in enumerate(names)}
    kept = []
    for path, xml in zip(paths, xmls, strict=True):
        image = str(root / path)
        for sentence in xml.wrong:
            note(faults, Fault(rule="bad-label", severity="error", path=image, message=sentence))
        for thing in xml.objects:
            if thing.name not in class_of:
                sentence = f"{str(xml.file)!r}: {thing.name!r} is none of the classes {some(list(names))}."
                note(faults, Fault(rule="unknown-class", severity="error", path=image, message=sentence))
        kept.append([thing for thing in xml.objects if thing.name in class_of])
    return Records.from_lists(
        root=root,
        paths=paths,
        boxes_xyxy=[[thing.box_xyxy for thing in things] for things in kept],
        class_ids=[[class_of[thing.name] for thing in things] for things in kept],
        crowd=[[t.crowd or (t.difficult and difficult == "ignore") for t in things] for things in kept],
        names=names,
        sizes_hw=[xml.size_hw for xml in xmls],
    )


def _parse_folder(folder: Path) -> dict[str, VocXml]:
    """Return what each xml of a folder says, by its path below the folder without the ending."""
    files = sorted(folder.rglob("*.xml"), key=lambda file: os.path.splitext(file)[0])
    return {file.relative_to(folder).with_suffix("").as_posix(): parse_voc_xml(file) for file in files}


def _images_by_stem(folder: Path) -> dict[str, list[str]]:
    images: dict[str, list[str]] = {}
    for path in list_images(folder, recursive=True):
        name = path.relative_to(folder).as_posix()
        images.setdefault(os.path.splitext(name)[0], []).append(name)
    return images


def _image_of(stem: str, xml: VocXml | None, images: Mapping[str, Sequence[str]]) -> str | None:
    """Return the image that belongs to an xml: the one of its name, else the one that it names."""
    named = xml.filename.replace("\\", "/") if xml else ""
    found = images.get(stem) or images.get(os.path.splitext(named)[0], [])
    # Several images may share the stem; then the xml's own word decides.
    return next((name for name in found if os.path.basename(name) == os.path.basename(named)), next(iter(found), None))


def _known_stem(entry: str, *known: Collection[str]) -> str:
    """Return the name that a line of a list means: the line itself, or without an ending or a trailing 1 or -1."""
    candidates = (entry, os.path.splitext(entry)[0], *entry.rsplit(None, 1)[:1])
    return next((c for c in candidates if any(c in k for k in known)), entry)


def _listed_names(voc: VocFolder) -> list[str] | None:
    for name in ("labels.txt", "classes.txt"):
        if (voc.root / name).is_file():
            return read_lines(voc.root / name)
    return None
