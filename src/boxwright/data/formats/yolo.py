"""YOLO, one text file per image and a `data.yaml`: `YoloLayout` and `write_yolo`."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from boxwright.core import yaml_file
from boxwright.core.errors import DataError, shorten
from boxwright.core.files import is_inside
from boxwright.data.formats.base import SPLIT_FOLDERS, Fault, home_of, outside, record, require_split, split_of
from boxwright.data.formats.files import (
    CopyMode,
    Progress,
    copy_images,
    exported_names,
    label_stems,
    list_files,
    read_lines,
    read_text,
    write_text,
)
from boxwright.data.formats.yolo_files import (
    CLASS_FILE,
    find_yaml,
    format_label,
    in_pixels,
    label_folder,
    listed_images,
    lists_images,
    load_yaml,
    parse_label,
    read_sizes_hw,
    yaml_classes,
    yaml_images,
)
from boxwright.data.label_cache import cached_clean
from boxwright.data.records import Records
from boxwright.data.threads import READERS, map_threads, with_progress
from boxwright.vision.decode import IMAGE_SUFFIXES

_log = logging.getLogger(__name__)

# How many text files are looked at to see whether a folder holds labels.
_LOOKED_AT = 100
_MOST_LABEL = 1 << 26
# A list that names images in more folders is read each time.
_MOST_FOLDERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class YoloLayout:
    """Where the images of a set are.

    Attributes:
        place: the yaml, list or folder that describes it.
        images: for each split ("" when there are none) the folders of images and the files that list images.
        names: class names by class id, None when no file has them.
        category_ids: the ids that a COCO set had for the classes; `write_yolo` keeps them.
        home: the folder that everything must be in; None for anywhere.
    """

    place: Path
    images: dict[str, tuple[Path, ...]]
    names: tuple[str, ...] | None = None
    category_ids: tuple[int, ...] | None = None
    home: Path | None = None

    @classmethod
    def find(cls, place: Path, allow_outside: bool = False) -> "YoloLayout | None":
        """Return the layout of the YOLO set at a path: a yaml, a list of images, or a folder; None without a set."""
        home = None if allow_outside else home_of(place)
        if place.suffix.lower() in (".yaml", ".yml") and place.is_file():
            return cls._from_yaml(place, home)
        if place.is_file():
            if place.suffix.lower() != ".txt" or not lists_images(place):
                return None
            around = find_yaml(place.parent)
            names = cls._from_yaml(around, home).names if around else _read_class_file(place.parent)
            return cls(place=place, images={"": (place,)}, names=names, home=home)
        file = find_yaml(place)
        if file is not None:
            return cls._from_yaml(file, home)
        images = _find_image_folders(place)
        return cls(place=place, images=images, names=_read_class_file(place), home=home) if images else None

    @classmethod
    def _from_yaml(cls, file: Path, home: Path | None) -> "YoloLayout":
        values = load_yaml(file)
        if not isinstance(values, Mapping):
            raise DataError(f"{str(file)!r} does not describe a YOLO set: it needs the keys 'names' and 'train'.")
        images = yaml_images(values, file, home)
        names, category_ids = yaml_classes(values, file)
        return cls(place=file, images=images, names=names, category_ids=category_ids, home=home)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits whose images exist."""
        return tuple(name for name, places in self.images.items() if name and all(map(os.path.exists, places)))

    @property
    def evidence(self) -> Path:
        """The yaml, or the first folder of images."""
        return self.place if self.place.is_file() else next(iter(self.images.values()))[0]

    def read(self, split: str | None, names: Sequence[str] | None = None, faults: list[Fault] | None = None) -> Records:
        """Return the images and boxes of a split, or of the whole set.

        Labels are in `labels/` if the images are in `images/`, else beside the images. An image without a label file
        has no boxes. A line with a polygon becomes the box around it. Listed images that don't exist, and label files
        without an image, are left out, logged, and named in `Records.missing`.

        The format holds fractions, so the size of each image is read from its header. An image that can't be read
        stays in the set, without size and boxes; loading it says what is wrong.
        """
        if faults is not None or (self.names is None and names is None):
            return self._parse(split, names, faults)
        places = self._choose(split)
        folders = {p for place in places for p in ([place] if place.is_dir() else _parents(listed_images(place)))}
        if len(folders) > _MOST_FOLDERS or not all(self.home is None or is_inside(f, self.home) for f in folders):
            return self._parse(split, names, faults)
        sources = [*places, *folders, *map(label_folder, folders), *([self.place] if self.place.is_file() else [])]
        return cached_clean(sources, ("yolo", self, split, names), lambda: self._parse(split, names, None))

    def _parse(self, split: str | None, names: Sequence[str] | None, faults: list[Fault] | None) -> Records:
        classes = self.names if names is None else tuple(names)
        if classes is None:
            raise DataError(
                f"Nothing names the classes of {str(self.place)!r}. "
                f"Put 'names' into a data.yaml, or one name per line into {CLASS_FILE!r}."
            )
        places = self._choose(split)
        listed = [image for place in places for image in self._list(place, faults)]
        if len(places) > 1:
            # They may overlap. One list that names an image twice is a fault, and stays for the linter to find.
            listed = list(dict.fromkeys(listed))
        root = _find_root(places, listed)
        folders = {folder: list_files(folder) for folder in sorted({image.parent for image in listed})}
        labels = {folder: _list_labels(label_folder(folder)) for folder in folders}
        images = [image for image in listed if image.name in folders[image.parent]]
        lost = [image for image in listed if image.name not in folders[image.parent]]
        lost += [label for folder, files in folders.items() for label in _find_orphans(files, labels[folder])]
        missing = [os.path.relpath(file, root) for file in lost]
        if not images:
            raise DataError(
                f"None of the {len(listed)} images of {str(self.place)!r} was found"
                f"{f', the first being {str(listed[0])!r}' if listed else ''}. Check the path."
            )
        if missing:
            _log.warning(
                "%d images or labels of %r have no counterpart and are left out: %s.",
                len(missing), str(self.place), shorten(missing),
            )  # fmt: skip

        def read_label(n: int) -> tuple[NDArray[np.float64], list[Fault]]:
            wrong: list[Fault] | None = None if faults is None else []
            image = images[n]
            return _read_label(image, labels[image.parent].get(image.stem), len(classes), wrong), wrong or []

        # Waiting for the disk is most of the work of reading small files, so there are more threads than cores.
        texts = map_threads(read_label, len(images), READERS)
        rows = []
        for own, wrong in with_progress(texts, len(images), "label files read"):
            rows.append(own)
            if faults is not None:
                faults += wrong
        sizes = [size or (0, 0) for size in read_sizes_hw(images)]
        unreadable = [str(image) for image, size in zip(images, sizes, strict=True) if size == (0, 0)]
        if unreadable:
            _log.warning(
                "%d images can't be read, so their boxes are unknown: %s.", len(unreadable), shorten(unreadable)
            )
            rows = [own if size != (0, 0) else own[:0] for own, size in zip(rows, sizes, strict=True)]
        pixels = [in_pixels(own, size) for own, size in zip(rows, sizes, strict=True)]
        return Records.from_lists(
            root=root,
            paths=[os.path.relpath(image, root) for image in images],
            boxes_xyxy=[boxes for boxes, _ in pixels],
            areas=[areas for _, areas in pixels],
            class_ids=[own[:, 0] for own in rows],
            names=classes,
            category_ids=self.category_ids if names is None else None,
            sizes_hw=sizes,
            missing=missing,
        )

    def _list(self, place: Path, faults: list[Fault] | None) -> list[Path]:
        """Return the images of a folder or list; those that a list names outside of the set's folder are faults."""
        images = listed_images(place)
        if self.home is None or os.path.isdir(place):
            return images
        kept = []
        for image in images:
            if is_inside(image, self.home):
                kept.append(image)
            else:
                record(faults, "outside-folder", image, outside(place, image, self.home))
        return kept

    def _choose(self, split: str | None) -> tuple[Path, ...]:
        """Return the folders and lists of a split, None for all that exist."""
        if split is not None:
            chosen = self.images[require_split(split, self.images, self.place)]
        else:
            names = self.splits or tuple(self.images)
            chosen = tuple(dict.fromkeys(place for name in names for place in self.images[name]))
        for place in chosen:
            if self.home is not None and not is_inside(place, self.home):
                raise DataError(outside(self.place, place, self.home))
            if not os.path.exists(place):
                raise DataError(
                    f"{str(self.place)!r} names images in {str(place)!r}, which does not exist. "
                    "Correct 'path' or the split in the yaml."
                )
        return chosen


def write_yolo(records: Records, folder: Path, split: str, images: CopyMode, progress: Progress | None = None) -> None:
    """Write a set as `images/<split>/`, `labels/<split>/` and `data.yaml`.

    Reading gives the same images, sizes, boxes and classes back, in the same order, and the category ids. Image ids and
    mask areas have no place in this format; crowds are left out, with a warning that counts them.

    Raises:
        DataError: a file can't be written, the folder holds a set with other classes, or the size of an image is
            unknown.
    """
    names = exported_names(records)
    stems = label_stems(names)
    description = _describe(records, folder / "data.yaml", split)
    # By the images themselves if possible: readers multiply by that size, whatever the labels say.
    measured = read_sizes_hw([records.path(i) for i in range(len(records))])
    sizes = [size or records.size_hw(i) for i, size in enumerate(measured)]
    for i, size in enumerate(sizes):
        if not min(size):
            raise DataError(
                f"The size of {str(records.path(i))!r} is unknown: the labels don't have it and the image can't be "
                "read. Leave it out."
            )
    copy_images(records, names, folder / "images" / split, images, progress)
    for i, stem in enumerate(stems):
        single = ~records.crowd_of(i)
        text = format_label(records.boxes(i)[single], records.class_ids_of(i)[single], sizes[i])
        write_text(folder / "labels" / split / f"{stem}.txt", text, atomic=False)
    if records.crowd.any():
        _log.warning("%d crowds are left out: YOLO labels have no place for them.", int(records.crowd.sum()))
    # A folder is read in the order of its names; another order needs a list.
    paths = [Path(folder, "images", split, name) for name in names]
    if paths != sorted(set(paths)):
        write_text(folder / f"{split}.txt", "".join(f"./images/{split}/{name}\n" for name in names))
        description[split] = f"{split}.txt"
    write_text(folder / "data.yaml", yaml.safe_dump(description, sort_keys=False, allow_unicode=True))


def _describe(records: Records, file: Path, split: str) -> dict[str, Any]:
    """Return the content of `data.yaml`: what it holds so far, and the new split."""
    known: dict[str, Any] = {}
    if file.exists():
        before = YoloLayout.find(file, allow_outside=True)
        if before is None or before.names != records.names:
            raise DataError(f"{str(file)!r} lists other classes than the set to be written. Choose an empty folder.")
        known = yaml_file.parse(read_text(file))
    description: dict[str, Any] = known | {split: f"images/{split}", "names": dict(enumerate(records.names))}
    if records.category_ids != tuple(range(1, len(records.names) + 1)):
        description["category_ids"] = list(records.category_ids)
    return description


def _parents(images: Sequence[Path]) -> set[Path]:
    return {Path(folder) for folder in {os.path.dirname(image) for image in images}}


def _find_image_folders(place: Path) -> dict[str, tuple[Path, ...]]:
    """Return the image folders in a folder without a yaml by split, none unless label files are there."""
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
    # Beside the images there may be any text; a label has its image.
    return any(file.with_suffix(suffix).is_file() for file in texts for suffix in (*IMAGE_SUFFIXES, ".JPG", ".JPEG"))


def _read_class_file(folder: Path) -> tuple[str, ...] | None:
    files = (folder / CLASS_FILE, label_folder(folder) / CLASS_FILE, folder / "labels" / CLASS_FILE)
    return next((tuple(read_lines(file)) for file in files if file.is_file()), None)


def _find_root(places: Sequence[Path], images: Sequence[Path]) -> Path:
    """Return the folder that paths are relative to: what all places have in common."""
    if all(place.is_dir() for place in places) or not images:
        return Path(os.path.commonpath(places))
    common = Path(os.path.commonpath([image.parent for image in images]))
    parts = common.parts
    for at in reversed(range(len(parts))):
        # A list may name the images of one folder deep inside only; the set still begins at `images/`.
        if parts[at] == "images":
            within = parts[at + 1 : at + 2]
            return Path(*parts[: at + 1], *(within if within and within[0] in SPLIT_FOLDERS else ()))
    return common


def _list_labels(folder: Path) -> dict[str, Path]:
    """Return the text files of a folder by their names without the ending."""
    return {name.removesuffix(".txt"): folder / name for name in list_files(folder) if name.endswith(".txt")}


def _find_orphans(images: frozenset[str], labels: Mapping[str, Path]) -> list[Path]:
    """Return the label files without an image."""
    stems = {os.path.splitext(f)[0] for f in images if os.path.splitext(f)[1].lower() in IMAGE_SUFFIXES}
    texts = [file for stem, file in sorted(labels.items()) if stem not in stems]
    return [file for file in texts if file.name != CLASS_FILE and not file.name.lower().startswith("readme")]


def _read_label(image: Path, file: Path | None, classes: int, faults: list[Fault] | None) -> NDArray[np.float64]:
    """Return the rows of an image's label file, see `parse_label`."""
    if file is None:
        if faults is not None:
            message = f"The image {str(image)!r} has no label file and is taken to have no boxes."
            record(faults, "unlabelled-image", image, message)
        return np.zeros((0, 6))
    try:
        text = read_text(file, max_bytes=_MOST_LABEL)
    except DataError as error:
        record(faults, "bad-label", image, str(error))
        return np.zeros((0, 6))
    rows, wrong = parse_label(text, classes)
    for rule, message in wrong:
        record(faults, rule, image, f"{str(file)!r}: {message}")
    return rows
