"""Pascal VOC, one xml per image: `VocLayout` and `write_voc`."""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from boxwright.core.errors import DataError, shorten
from boxwright.core.files import require_file
from boxwright.data.formats.base import SPLIT_FOLDERS, Fault, record, require_split, split_of
from boxwright.data.formats.files import (
    CopyMode,
    Progress,
    copy_images,
    exported_names,
    label_stems,
    list_files,
    read_lines,
    write_text,
)
from boxwright.data.formats.voc_xml import VocXml, format_voc_xml, parse_voc_xml
from boxwright.data.label_cache import cached_clean
from boxwright.data.records import Records
from boxwright.data.threads import READERS, map_threads, with_progress
from boxwright.vision.decode import list_images

_log = logging.getLogger(__name__)

_LABEL_FOLDERS = ("Annotations", "annotations")
_IMAGE_FOLDERS = ("JPEGImages", "images", "Images")
_LISTS = ("train", "val", "trainval", "test")
_CLASS_FILES = ("labels.txt", "classes.txt")


class VocPart(NamedTuple):
    """A folder of xml files and the folder with their images."""

    labels: Path
    images: Path


@dataclass(frozen=True)
class VocLayout:
    """The folders of a set by split (one called "" when the set is in one piece), and the lists of image names."""

    root: Path
    parts: dict[str, VocPart]
    lists: dict[str, Path] = field(default_factory=dict)

    @classmethod
    def find(cls, place: Path, allow_outside: bool = False) -> "VocLayout | None":
        """Return the layout of the VOC set in a folder, None when there is no xml at the usual places.

        `allow_outside` makes no difference: names in lists and xml files are only looked up among the files found.
        """
        del allow_outside
        if not place.is_dir():
            return None
        if place.name in _LABEL_FOLDERS and _has_xml(place, "*.xml", "*/*.xml"):
            return _find_piece(place.parent)
        if (found := _find_piece(place)) is not None:
            return found
        pieces = {name: _find_piece(place / name) for name in SPLIT_FOLDERS}
        parts = {split_of(name) or name: piece.parts[""] for name, piece in pieces.items() if piece is not None}
        if parts:
            return cls(place, parts)
        inside = (place / name for name in sorted(list_files(place)))
        below = [piece for piece in map(_find_piece, filter(Path.is_dir, inside)) if piece is not None]
        if len(below) > 1:
            raise DataError(
                f"There are {len(below)} Pascal VOC sets in {str(place)!r}: "
                f"{', '.join(repr(piece.root.name) for piece in below)}. Name the one to read."
            )
        return below[0] if below else None

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits by the lists in `ImageSets/Main`, else by folders of that name."""
        return tuple(self.lists) or tuple(name for name in self.parts if name)

    @property
    def evidence(self) -> Path:
        """The first folder of xml files."""
        return next(iter(self.parts.values())).labels

    @cached_property
    def _xmls(self) -> dict[Path, dict[str, VocXml]]:
        """The content of each xml, by its folder and its path below that without the ending."""
        # Those of every split: class ids must be the same in all of them.
        return {part.labels: _parse_folder(part.labels) for part in self.parts.values()}

    def read(self, split: str | None, names: Sequence[str] | None = None, faults: list[Fault] | None = None) -> Records:
        """Return the images and boxes of a split, or of the whole set.

        An xml and its image have the same name except for the ending. Images without an xml are left out; an xml
        without an image is left out, logged, and named in `Records.missing`. By default the classes are those of
        `labels.txt` or `classes.txt` in the set's folder, else all that occur in the whole set, sorted.

        Coordinates are taken as written. The original VOC counts pixels from 1 and includes the last one; most tools
        that write this format today count from 0, and nothing in a file says which it is.
        """
        if faults is not None:
            return self._parse(split, names, faults)
        files = [*self.lists.values(), *(file for n in _CLASS_FILES if (file := self.root / n).is_file())]
        folders = [folder for part in self.parts.values() for folder in part]
        question = ("voc", self.root, self.parts, split, names)
        return cached_clean([*files, *folders], question, lambda: self._parse(split, names, None))

    def _parse(self, split: str | None, names: Sequence[str] | None, faults: list[Fault] | None) -> Records:
        chosen = self._choose(split)
        classes = self._class_names() if names is None else list(names)
        root = chosen[0][0].images if len(chosen) == 1 else self.root
        paths: list[str] = []
        xmls: list[VocXml] = []
        missing: list[str] = []
        for part, listed in chosen:
            xml_of, images = self._xmls[part.labels], _images_by_stem(part.images)
            below = os.path.relpath(part.images, root)
            stems = list(xml_of) if listed is None else [_known_stem(entry, xml_of, images) for entry in listed]
            for stem in stems:
                xml = xml_of.get(stem)
                image = _image_of(stem, xml, images)
                if image is None:
                    name = xml.filename if xml and xml.filename else stem
                    missing.append(os.path.normpath(os.path.join(below, name)))
                elif xml is not None:
                    paths.append(os.path.normpath(os.path.join(below, image)))
                    xmls.append(xml)
            unlabelled = set(images if listed is None else stems) & (set(images) - set(xml_of))
            for stem in sorted(unlabelled) if faults is not None else ():
                file = part.images / images[stem][0]
                record(faults, "unlabelled-image", file, f"The image {str(file)!r} has no xml and is left out.")
        if not paths:
            raise DataError(
                f"None of the {len(missing)} images of {str(self.root)!r} was found, the first being "
                f"{shorten(missing, 1)}. Put the images into {str(root)!r}."
            )
        if missing:
            _log.warning(
                "%d images that %r names are not in %r and are left out: %s.",
                len(missing), str(self.root), str(root), shorten(missing),
            )  # fmt: skip
        class_of = {name: n for n, name in enumerate(classes)}
        for path, xml in zip(paths, xmls, strict=True):
            for sentence in xml.wrong:
                record(faults, "bad-label", root / path, sentence)
            for thing in xml.objects:
                if thing.name not in class_of:
                    message = f"{str(xml.file)!r}: {thing.name!r} is none of the classes {shorten(classes)}."
                    record(faults, "unknown-class", root / path, message)
        kept = [[thing for thing in xml.objects if thing.name in class_of] for xml in xmls]
        return Records.from_lists(
            root=root,
            paths=paths,
            boxes_xyxy=[[thing.box_xyxy for thing in things] for things in kept],
            class_ids=[[class_of[thing.name] for thing in things] for things in kept],
            crowd=[[thing.crowd for thing in things] for things in kept],
            names=classes,
            sizes_hw=[xml.size_hw for xml in xmls],
            missing=missing,
        )

    def _choose(self, split: str | None) -> list[tuple[VocPart, list[str] | None]]:
        """Return the parts of a split (None for all), each with the image names it consists of, None for all."""
        name = split and require_split(split, self.splits, self.root)
        if self.lists:
            files = [self.lists[name]] if name else list(self.lists.values())
            lines = [line for file in files for line in read_lines(file)]
            # Lists may overlap. A name twice in one list is a fault, and stays for the linter to find.
            return [(self.parts[""], lines if len(files) == 1 else list(dict.fromkeys(lines)))]
        return [(part, None) for key, part in self.parts.items() if not name or key == name]

    def _class_names(self) -> list[str]:
        file = next((self.root / name for name in _CLASS_FILES if (self.root / name).is_file()), None)
        if file is not None:
            return read_lines(file)
        found = {thing.name for part in self._xmls.values() for xml in part.values() for thing in xml.objects}
        if not found:
            raise DataError(
                f"No xml of {str(self.root)!r} has an object, so there are no class names. Give them as names."
            )
        return sorted(found)


def write_voc(records: Records, folder: Path, split: str, images: CopyMode, progress: Progress | None = None) -> None:
    """Write a set as `Annotations/`, `JPEGImages/`, `ImageSets/Main/<split>.txt` and `labels.txt`.

    Reading gives the same images, sizes, boxes, classes and crowds back, in the same order. Image ids, category ids and
    mask areas have no place in this format.

    Raises:
        DataError: a file can't be written, or the folder holds a set with other classes.
    """
    names = exported_names(records)
    stems = label_stems(names)
    labels = folder / "labels.txt"
    if labels.exists() and read_lines(labels) != list(records.names):
        raise DataError(f"{str(labels)!r} lists other classes than the set to be written. Choose an empty folder.")
    copy_images(records, names, folder / "JPEGImages", images, progress)
    for i, (name, stem) in enumerate(zip(names, stems, strict=True)):
        text = format_voc_xml(records, i, os.path.basename(name))
        write_text(folder / "Annotations" / f"{stem}.xml", text, atomic=False)
    write_text(folder / "ImageSets" / "Main" / f"{split}.txt", "".join(f"{stem}\n" for stem in stems))
    write_text(labels, "".join(f"{name}\n" for name in records.names))


def _find_piece(folder: Path) -> VocLayout | None:
    """Return the layout of a set in one piece."""
    images = next((folder / name for name in _IMAGE_FOLDERS if (folder / name).is_dir()), folder)
    named = (folder / name for name in _LABEL_FOLDERS)
    labels = next((f for f in named if _has_xml(f, "*.xml", "*/*.xml")), None)
    if labels is None:
        # Not in folders inside: `train/` and `valid/` with xml files are splits, not one piece.
        labels = next((f for f in (images, folder) if _has_xml(f, "*.xml")), None)
    if labels is None:
        return None
    lists = {name: folder / "ImageSets" / "Main" / f"{name}.txt" for name in _LISTS}
    return VocLayout(folder, {"": VocPart(labels, images)}, {n: f for n, f in lists.items() if f.is_file()})


def _has_xml(folder: Path, *patterns: str) -> bool:
    """Return whether a folder has an xml of this format, judging by the first one."""
    first = next((file for pattern in patterns for file in folder.glob(pattern)), None)
    if first is None:
        return False
    try:
        require_file(first)
        with first.open("rb") as stream:
            head = stream.read(4096)
    except OSError:
        head = b""  # reading it says what is wrong
    # In a label folder an empty or broken one counts as well; reading it says what is wrong.
    return b"<annotation" in head or first.parent.name in _LABEL_FOLDERS


def _parse_folder(folder: Path) -> dict[str, VocXml]:
    files = sorted(folder.rglob("*.xml"), key=lambda file: os.path.splitext(file)[0])
    # Waiting for the disk is most of the work of reading small files, so there are more threads than cores.
    xmls = map_threads(lambda n: parse_voc_xml(files[n]), len(files), READERS)
    told = with_progress(xmls, len(files), "label files read")
    return {xml.file.relative_to(folder).with_suffix("").as_posix(): xml for xml in told}


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
    # Several images may share the stem; then the name in the xml decides.
    return next((name for name in found if os.path.basename(name) == os.path.basename(named)), next(iter(found), None))


def _known_stem(entry: str, *known: Collection[str]) -> str:
    """Return the name that a line of a list means: the line itself, or without an ending or a trailing 1 or -1."""
    candidates = (entry, os.path.splitext(entry)[0], *entry.rsplit(None, 1)[:1])
    return next((c for c in candidates if any(c in k for k in known)), entry)
