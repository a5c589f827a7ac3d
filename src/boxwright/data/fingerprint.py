"""`data.lock`: the state of a set when a run began, so that the next run can say what has changed."""

import hashlib
import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from boxwright.core.errors import DataError, shorten
from boxwright.data.formats.files import read_text, write_text
from boxwright.data.records import PathText, Records, unpack_paths
from boxwright.data.shards import stat_image

_VERSION = 1
# The place of a hash of the file's content in locks and digests of version 1; it is always empty.
_NO_HASH = ""


class ImagePrint(NamedTuple):
    """The state of one image.

    Attributes:
        file_bytes: the length of the file, -1 if it did not exist.
        changed_ns: when it was last written.
        labels: a hash of its boxes and their class names.
    """

    file_bytes: int
    changed_ns: int
    labels: str


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """The state of a set.

    Attributes:
        names: the classes.
        category_ids: the ids that the annotations use for them.
        images: the state of each image, by its path below the root.
    """

    names: tuple[str, ...]
    category_ids: tuple[int, ...]
    images: dict[str, ImagePrint]

    @cached_property
    def digest(self) -> str:
        """A hash of everything except dates, so that a copy on another machine has the same."""
        rows = [[name, p.file_bytes, p.labels, _NO_HASH] for name, p in sorted(self.images.items())]
        return _hash(json.dumps([self.names, self.category_ids, rows]).encode(), 16)

    def write_lock(self, path: PathText) -> None:
        """Write the fingerprint as JSON.

        Raises:
            DataError: the file can't be written.
        """
        values = {
            "version": _VERSION,
            "digest": self.digest,
            "content": False,
            "names": self.names,
            "category_ids": self.category_ids,
        }
        # One line per image: a difference between two locks can be read.
        body = ",\n".join(f"  {json.dumps(name)}: {json.dumps([*row, _NO_HASH])}" for name, row in self.images.items())
        write_text(Path(path), f'{json.dumps(values, indent=1)[:-2]},\n "images": {{\n{body}\n }}\n}}\n')


def fingerprint(records: Records) -> Fingerprint:
    """Return the state of a set now, by its labels and by the lengths and dates of its files; none is opened."""
    words = [name.encode("utf-8", "surrogatepass") for name in records.names]
    root, offsets, class_ids = str(records.root), records.offsets.tolist(), records.class_ids.tolist()
    # Cutting bytes is much faster than cutting arrays, of which there would be four for each image.
    arrays = (records.boxes_xyxy, records.areas, records.crowd)
    columns = [(array.tobytes(), array.nbytes // max(len(array), 1)) for array in arrays]
    sizes = records.sizes_hw.tobytes()

    def one(i: int, name: str) -> ImagePrint:
        start, end = offsets[i], offsets[i + 1]
        parts = [data[start * width : end * width] for data, width in columns]
        # Names, not class ids: a new class must not change the labels of all images.
        classes = b"\n".join([words[c] for c in class_ids[start:end]])
        labels = _hash(b"".join((*parts, sizes[8 * i : 8 * i + 8], classes)))
        try:
            status = stat_image(os.path.join(root, name))
        except (OSError, ValueError):
            return ImagePrint(-1, 0, labels)
        return ImagePrint(status.st_size, status.st_mtime_ns, labels)

    images = {name: one(i, name) for i, name in enumerate(unpack_paths(records))}
    return Fingerprint(names=records.names, category_ids=records.category_ids, images=images)


def read_lock(path: PathText) -> Fingerprint:
    """Return the fingerprint that `write_lock` wrote.

    Raises:
        DataError: the file is missing or is not a lock.
    """
    file = Path(path)
    try:
        values = json.loads(read_text(file))
        if values["version"] != _VERSION:
            raise DataError(
                f"{str(file)!r} is a data lock of version {values['version']!r}, not {_VERSION}. Remove it."
            )
        return Fingerprint(
            names=tuple(values["names"]),
            category_ids=tuple(values["category_ids"]),
            images={name: ImagePrint(*row[:3]) for name, row in values["images"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{str(file)!r} is not a data lock: {error!r}. Remove it to start a new one.") from error


def compare(old: Fingerprint, new: Fingerprint) -> list[str]:
    """Return a sentence for each difference between two states of a set; none if it is unchanged."""
    out = []
    came = [name for name in new.names if name not in old.names]
    went = [name for name in old.names if name not in new.names]
    if came:
        out.append(f"New classes: {shorten(came)}.")
    if went:
        out.append(f"Classes that are gone: {shorten(went)}.")
    if not came and not went and new.names != old.names:
        out.append("The classes are in another order.")
    elif new.names == old.names and new.category_ids != old.category_ids:
        out.append("The category ids of the classes changed.")

    pairs = [(name, old.images[name], now) for name, now in new.images.items() if name in old.images]
    changed = [name for name, a, b in pairs if a.file_bytes != b.file_bytes]
    # A date alone proves nothing: copying a set changes it.
    touched = [n for n, a, b in pairs if a.changed_ns != b.changed_ns and a.file_bytes == b.file_bytes]
    relabelled = [name for name, a, b in pairs if a.labels != b.labels]
    out += _count(set(new.images) - set(old.images), "image was added", "images were added")
    out += _count(set(old.images) - set(new.images), "image is gone", "images are gone")
    out += _count(changed, "image changed", "images changed")
    out += _count(touched, "image has a new date", "images have a new date", " The length is the same.")
    return out + _count(relabelled, "image has other labels", "images have other labels")


def _count(names: Collection[str], one: str, many: str, more: str = "") -> list[str]:
    return [f"{len(names)} {one if len(names) == 1 else many}: {shorten(sorted(names))}.{more}"] if names else []


def _hash(data: bytes, size: int = 8) -> str:
    return hashlib.blake2b(data, digest_size=size).hexdigest()
