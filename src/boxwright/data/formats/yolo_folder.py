"""Where the parts of a YOLO set are, by its `data.yaml` or by its folders."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from boxwright.core.errors import DataError
from boxwright.data.formats.files import read_lines, read_text
from boxwright.data.formats.splits import SPLIT_FOLDERS, needed, split_of
from boxwright.vision.decode import IMAGE_SUFFIXES, list_images

_YAML_NAMES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")

# So many text files tell whether a folder holds labels.
_LOOKED_AT = 100

CLASS_FILE = "classes.txt"
"""Class names, one a line, where there is no yaml."""


@dataclass(frozen=True, slots=True, kw_only=True)
class YoloFolder:
    """The layout of a set.

    Attributes:
        place: the yaml, list or folder it was read from.
        sources: for each split ("" when there are none) the folders of images and files that list images.
        names: class names by class id, None where nothing says them.
        category_ids: the ids that a COCO set had for the classes; `write_yolo` keeps them.
    """

    place: Path
    sources: dict[str, tuple[Path, ...]]
    names: tuple[str, ...] | None = None
    category_ids: tuple[int, ...] | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the set comes with and that are there."""
        return tuple(name for name, sources in self.sources.items() if name and all(s.exists() for s in sources))

    def choose(self, split: str | None) -> tuple[Path, ...]:
        """Return the sources of a split, None for all that are there.

        Raises:
            DataError: the set has no such split, or its images are not there.
        """
        if split is not None:
            chosen = self.sources[needed(split, [name for name in self.sources if name], str(self.place))]
        else:
            there = {name: sources for name, sources in self.sources.items() if name in self.splits}
            chosen = tuple(dict.fromkeys(s for sources in (there or self.sources).values() for s in sources))
        for source in chosen:
            if not source.exists():
                raise DataError(
                    f"{str(self.place)!r} names images in {str(source)!r}, which is not there. "
                    "Correct 'path' or the split in the yaml."
                )
        return chosen


def find_yolo(place: Path) -> YoloFolder | None:
    """Return the layout of the YOLO set at a path: a yaml, a list of images, or a folder; None when there is none.

    Raises:
        DataError: the yaml or list can't be used.
    """
    place = Path(os.path.abspath(place))
    if place.is_file():
        if place.suffix.lower() in (".yaml", ".yml"):
            return _from_yaml(place)
        if place.suffix.lower() == ".txt" and _lists_images(place):
            around = find_yaml(place.parent)
            names = _from_yaml(around).names if around else _class_file(place.parent)
            return YoloFolder(place=place, sources={"": (place,)}, names=names)
        return None
    if not place.is_dir():
        return None
    file = find_yaml(place)
    if file is not None:
        return _from_yaml(file)
    sources = _by_folders(place)
    return YoloFolder(place=place, sources=sources, names=_class_file(place)) if sources else None


def find_yaml(folder: Path) -> Path | None:
    """Return the yaml that describes a YOLO set in a folder: `data.yaml`, or the only other one that names images.

    Raises:
        DataError: there are several.
    """
    usual = next((folder / name for name in _YAML_NAMES if (folder / name).is_file()), None)
    if usual is not None:
        return usual
    found = [f for f in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]) if _describes_a_set(f)]
    if len(found) > 1:
        raise DataError(
            f"There are {len(found)} yaml files of YOLO sets in {str(folder)!r}: "
            f"{', '.join(repr(f.name) for f in found)}. Name the one to read."
        )
    return found[0] if found else None


def list_source(source: Path) -> list[Path]:
    """Return the images of a source, a folder or a list file, in order; listed ones need not exist.

    Raises:
        DataError: it can't be read.
    """
    if source.is_dir():
        return list_images(source, recursive=True)
    return [Path(os.path.normpath(source.parent / line)) for line in read_lines(source)]


def label_folder(folder: Path) -> Path:
    """Return where the label files of a folder of images are: in `labels/` for `images/`, else beside the images.

    Example:
        >>> label_folder(Path("/set/train")).as_posix()
        '/set/train'
    """
    parts = list(folder.parts)
    for at in reversed(range(len(parts))):
        if parts[at] == "images":
            other = Path(*parts[:at], "labels", *parts[at + 1 :])
            return other if Path(*parts[:at], "labels").is_dir() else folder
    return folder


def _from_yaml(file: Path) -> YoloFolder:
    values = load_yaml(file)
    if not isinstance(values, Mapping):
        raise DataError(f"{str(file)!r} describes no YOLO set: it has no keys. It needs 'names' and 'train'.")
    sources = {}
    for key in SPLIT_FOLDERS:
        value = values.get(key)
        if value:
            wanted = value if isinstance(value, list) else [value]
            sources[split_of(key) or key] = tuple(_locate(str(one), values, file) for one in wanted)
    if not sources:
        raise DataError(f"{str(file)!r} names no images: it has none of the keys 'train', 'val', 'test'.")
    names = _names(values, file)
    return YoloFolder(place=file, sources=sources, names=names, category_ids=_category_ids(values, names, file))


def _locate(source: str, values: Mapping[Any, Any], file: Path) -> Path:
    """Return the place that a yaml means, the likeliest when none of the possible ones exists."""
    # The folder in the yaml is often one of another machine; then the yaml's own folder counts. And one popular
    # exporter writes "../train/images" where it means "train/images".
    bases = (file.parent / str(values.get("path") or "."), file.parent)
    tries = [base / s for s in (source, source.removeprefix("../")) for base in bases]
    found = next((t for t in tries if t.exists()), tries[0])
    return Path(os.path.normpath(found))


def _names(values: Mapping[Any, Any], file: Path) -> tuple[str, ...] | None:
    given = values.get("names")
    if given is None:
        return None
    if isinstance(given, Mapping):
        if sorted(given, key=str) != sorted(range(len(given)), key=str):
            raise DataError(f"{str(file)!r}: the keys of 'names' are {list(given)!r}. Number the classes 0, 1, 2 ...")
        given = [given[n] for n in range(len(given))]
    if not isinstance(given, list) or not given:
        raise DataError(f"{str(file)!r}: 'names' is {given!r} where a list of class names should be.")
    count = values.get("nc", len(given))
    if count != len(given):
        raise DataError(f"{str(file)!r} has nc {count!r} but {len(given)} names. Correct one of them.")
    return tuple(str(name) for name in given)


def _category_ids(values: Mapping[Any, Any], names: tuple[str, ...] | None, file: Path) -> tuple[int, ...] | None:
    ids = values.get("category_ids")
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids) or len(set(ids)) != len(names or ()):
        raise DataError(f"{str(file)!r}: 'category_ids' is {ids!r} where one number for each name should be.")
    return tuple(ids)


def load_yaml(file: Path) -> Any:
    """Return the values of a yaml file.

    Raises:
        DataError: it can't be read or is no yaml.
    """
    try:
        return yaml.safe_load(read_text(file))
    except yaml.YAMLError as error:
        raise DataError(f"{str(file)!r} is not valid yaml: {' '.join(str(error).split())}. Correct it.") from error


def _describes_a_set(file: Path) -> bool:
    try:
        values = load_yaml(file)
    except DataError:
        return False
    return isinstance(values, Mapping) and "names" in values and any(key in values for key in SPLIT_FOLDERS)


def _by_folders(place: Path) -> dict[str, tuple[Path, ...]]:
    """Return the sources in a folder without a yaml, nothing where no label files lie."""
    for pattern in ("images/{}", "{}/images", "{}"):
        folders = [(name, place / pattern.format(name)) for name in SPLIT_FOLDERS]
        splits: dict[str, tuple[Path, ...]] = {
            split_of(name) or name: (f,) for name, f in folders if f.is_dir() and _has_labels(f)
        }  # fmt: skip
        if splits:
            return splits
    whole = next((f for f in (place / "images", place) if f.is_dir() and _has_labels(f)), None)
    return {"": (whole,)} if whole else {}


def _has_labels(folder: Path) -> bool:
    labels = label_folder(folder)
    texts = islice((file for pattern in ("*.txt", "*/*.txt") for file in labels.glob(pattern)), _LOOKED_AT)
    if labels != folder:
        return any(file.name != CLASS_FILE for file in texts)
    # Beside the images any text may lie: a label has its image.
    return any(file.with_suffix(suffix).is_file() for file in texts for suffix in (*IMAGE_SUFFIXES, ".JPG", ".JPEG"))


def _lists_images(file: Path) -> bool:
    lines = read_lines(file)
    return bool(lines) and all(os.path.splitext(line)[1].lower() in IMAGE_SUFFIXES for line in lines[:5])


def _class_file(folder: Path) -> tuple[str, ...] | None:
    files = (folder / CLASS_FILE, label_folder(folder) / CLASS_FILE, folder / "labels" / CLASS_FILE)
    return next((tuple(read_lines(file)) for file in files if file.is_file()), None)
