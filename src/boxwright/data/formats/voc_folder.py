"""Where the parts of a Pascal VOC set are."""

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from boxwright.core.errors import DataError
from boxwright.data.formats.files import read_lines
from boxwright.data.formats.splits import SPLIT_FOLDERS, needed, split_of

_LABEL_FOLDERS = ("Annotations", "annotations")
_IMAGE_FOLDERS = ("JPEGImages", "images", "Images")
_LISTS = ("train", "val", "trainval", "test")


@dataclass(frozen=True, slots=True)
class VocPart:
    """A folder of xml files and the folder with their images."""

    labels: Path
    images: Path


@dataclass(frozen=True)
class VocFolder:
    """The layout of a set: parts by split (one part called "" when the set is in one piece), and lists of names."""

    root: Path
    parts: dict[str, VocPart]
    lists: dict[str, Path] = field(default_factory=dict)

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """The splits that the set comes with."""
        return tuple(self.lists) or tuple(name for name in self.parts if name)

    def choose(self, split: str | None) -> list[tuple[VocPart, list[str] | None]]:
        """Return the parts of a split (None for all), each with the image names it is made of, None for every one.

        Raises:
            DataError: the set has no such split.
        """
        name = split and needed(split, self.splits, str(self.root))
        if self.lists:
            files = [self.lists[name]] if name else list(self.lists.values())
            lines = [line for file in files for line in read_lines(file)]
            # Lists may overlap. One that has a name twice is at fault, and stays so for the linter to find.
            return [(self.parts[""], lines if len(files) == 1 else list(dict.fromkeys(lines)))]
        return [(part, None) for key, part in self.parts.items() if not name or key == name]


def find_voc(place: Path) -> VocFolder | None:
    """Return the layout of the VOC set in a folder, None when there is no xml where one would be.

    Raises:
        DataError: the folder holds several sets.
    """
    place = Path(os.path.abspath(place))
    if place.name in _LABEL_FOLDERS and _has_xml(place, "*.xml", "*/*.xml"):
        return _one_piece(place.parent)
    found = _one_piece(place)
    if found is not None:
        return found
    parts = {name: _one_piece(place / name) for name in SPLIT_FOLDERS}
    named = {split_of(name) or name: p.parts[""] for name, p in parts.items() if p is not None}
    if named:
        return VocFolder(place, named)
    below = [f for f in (_one_piece(f) for f in _folders(place)) if f is not None]
    if len(below) > 1:
        raise DataError(
            f"There are {len(below)} Pascal VOC sets in {str(place)!r}: "
            f"{', '.join(repr(f.root.name) for f in below)}. Name the one to read."
        )
    return below[0] if below else None


def _one_piece(folder: Path) -> VocFolder | None:
    images = next((folder / name for name in _IMAGE_FOLDERS if (folder / name).is_dir()), folder)
    named = (folder / name for name in _LABEL_FOLDERS)
    labels = next((f for f in named if _has_xml(f, "*.xml", "*/*.xml")), None)
    if labels is None:
        # Folders inside don't count here: `train/` and `valid/` with xml files are splits, not one piece.
        labels = next((f for f in (images, folder) if _has_xml(f, "*.xml")), None)
    if labels is None:
        return None
    lists = {name: folder / "ImageSets" / "Main" / f"{name}.txt" for name in _LISTS}
    return VocFolder(folder, {"": VocPart(labels, images)}, {n: f for n, f in lists.items() if f.is_file()})


def _has_xml(folder: Path, *patterns: str) -> bool:
    """Tell whether a folder has an xml of this format, by a look at the first one."""
    first = next((file for pattern in patterns for file in folder.glob(pattern)), None)
    if first is None:
        return False
    try:
        with first.open("rb") as stream:
            head = stream.read(4096)
    except OSError:
        return False
    # An empty or broken one counts as well: the folder is full of them, and reading says what is wrong.
    return b"<annotation" in head or first.parent.name in _LABEL_FOLDERS


def _folders(place: Path) -> list[Path]:
    try:
        return sorted(f for f in place.iterdir() if f.is_dir())
    except OSError:
        return []
