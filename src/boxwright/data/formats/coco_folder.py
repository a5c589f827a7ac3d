"""Where the COCO json files of a set are."""

import mmap
import os
import re
from dataclasses import dataclass
from pathlib import Path

from boxwright.core.errors import DataError
from boxwright.data.formats.files import some
from boxwright.data.formats.splits import SPLIT_FOLDERS, needed, split_of

_KEYS = (b"images", b"annotations", b"categories")


@dataclass(frozen=True, slots=True, kw_only=True)
class CocoFolder:
    """The json files of a set by split; "" is for those whose names speak of none."""

    place: Path
    files: dict[str, tuple[Path, ...]]

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the set comes with."""
        return tuple(name for name, files in self.files.items() if name and len(files) == 1)

    @property
    def every(self) -> tuple[Path, ...]:
        """All json files."""
        return tuple(file for files in self.files.values() for file in files)

    def choose(self, split: str | None) -> Path:
        """Return the json of a split, or the only json.

        Raises:
            DataError: the set has no such split, or several files for it.
        """
        if split is None:
            files = self.every
        else:
            files = self.files[needed(split, [name for name in self.files if name], str(self.place))]
        if len(files) > 1:
            shown = some([str(file.relative_to(self.place)) for file in files])
            hint = f", or a split ({', '.join(self.splits)})" if split is None and self.splits else ""
            raise DataError(
                f"There are {len(files)} COCO json files in {str(self.place)!r}: {shown}. Name the one to read{hint}."
            )
        return files[0]


def find_coco(place: Path) -> CocoFolder | None:
    """Return the COCO json files of a folder, its `annotations/` and its folders of splits; None when there are none.

    Where some are called `instances...`, others (key points, captions) don't count.
    """
    place = Path(os.path.abspath(place))
    if place.is_file():
        return CocoFolder(place=place, files={"": (place,)}) if place.suffix.lower() == ".json" else None
    files = json_files(place)
    named = [file for file in files if file.name.startswith("instances") and looks_like_coco(file)]
    found = named or [file for file in files if looks_like_coco(file)]
    by_split: dict[str, tuple[Path, ...]] = {}
    for file in found:
        split = split_of(file.stem) or (split_of(file.parent.name) if file.parent != place else None) or ""
        by_split[split] = (*by_split.get(split, ()), file)
    return CocoFolder(place=place, files=by_split) if found else None


def json_files(place: Path) -> list[Path]:
    """Return every json file where a COCO json would be."""
    return sorted(
        file
        for inner in ("", "annotations", *SPLIT_FOLDERS)
        for file in (place / inner).glob("*.json")
        if file.is_file()
    )


def looks_like_coco(file: Path) -> bool:
    """Return whether a json file has the lists that COCO annotations have."""
    # Searched, not parsed: the official annotations folder holds 1.5 GB of json.
    try:
        with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return all(re.search(rb'"%s"\s*:\s*\[' % key, data) for key in _KEYS)
    except (OSError, ValueError):  # ValueError: the file is empty
        return False
