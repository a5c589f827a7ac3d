"""`data.lock`: what a set was like when a run began, so that the next run can say what has changed."""

import hashlib
import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from boxwright.core.errors import DataError
from boxwright.data.formats.files import read_text, some, write_text
from boxwright.data.records import PathText, Records
from boxwright.data.threads import map_threads

_VERSION = 1
_READERS = 8


@dataclass(frozen=True, slots=True)
class ImagePrint:
    """What is remembered of one image.

    Attributes:
        file_bytes: the length of the file, -1 when it was not there.
        changed_ns: when it was last written.
        labels: a hash of its boxes and their class names.
        content: a hash of the file, "" when only length and date were looked at.
    """

    file_bytes: int
    changed_ns: int
    labels: str
    content: str = ""


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What a set is like.

    Attributes:
        names: the classes.
        category_ids: the ids that the annotations use for them.
        images: what is remembered of each image, by its path below the root.
        content: whether the images were read and hashed.
    """

    names: tuple[str, ...]
    category_ids: tuple[int, ...]
    images: dict[str, ImagePrint]
    content: bool = False

    @cached_property
    def digest(self) -> str:
        """A hash of all of it but the dates, so that a copy on another machine has the same."""
        rows = [[name, p.file_bytes, p.labels, p.content] for name, p in sorted(self.images.items())]
        return _hash(json.dumps([self.names, self.category_ids, rows]).encode(), 16)

    def write_lock(self, path: PathText) -> None:
        """Write the fingerprint as JSON.

        Raises:
            DataError: the file can't be written.
        """
        rows = {name: [p.file_bytes, p.changed_ns, p.labels, p.content] for name, p in self.images.items()}
        values = {
            "version": _VERSION,
            "digest": self.digest,
            "content": self.content,
            "names": self.names,
            "category_ids": self.category_ids,
        }
        # One line an image: a difference between two locks can be read.
        body = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        write_text(Path(path), f'{json.dumps(values, indent=1)[:-2]},\n "images": {{\n{body}\n }}\n}}\n')


def fingerprint(records: Records, *, content: bool = False) -> Fingerprint:
    """Return what a set is like now. No file is opened unless `content` asks to read and hash every image.

    Without `content`, an image counts as changed by its length, and as perhaps changed by its date.
    """
    words = [name.encode("utf-8", "surrogatepass") for name in records.names]

    def one(i: int) -> ImagePrint:
        # Names, not class ids: a class that comes in must not change the labels of all images.
        classes = b"\n".join(words[c] for c in records.class_ids_of(i).tolist())
        parts = (records.boxes(i), records.areas_of(i), records.crowd_of(i), records.sizes_hw[i])
        labels = _hash(b"".join(part.tobytes() for part in parts) + classes)
        path = records.path(i)
        try:
            status = os.stat(path)
            found = _hash(path.read_bytes(), 16) if content else ""
        except (OSError, ValueError):
            return ImagePrint(-1, 0, labels)
        return ImagePrint(status.st_size, status.st_mtime_ns, labels, found)

    # Asking for length and date is too little work for threads.
    prints = map_threads(one, len(records), _READERS) if content else map(one, range(len(records)))
    return Fingerprint(
        names=records.names,
        category_ids=records.category_ids,
        images={records.relative_path(i): found for i, found in enumerate(prints)},
        content=content,
    )


def read_lock(path: PathText) -> Fingerprint:
    """Return the fingerprint that `write_lock` wrote.

    Raises:
        DataError: the file is missing or is no such file.
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
            images={name: ImagePrint(*row) for name, row in values["images"].items()},
            content=bool(values["content"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{str(file)!r} is no data lock: {error!r}. Remove it to start a new one.") from error


def compare(lock: PathText | Fingerprint, records: Records) -> list[str]:
    """Return a sentence for each way in which a set differs from what it was; none when it is the same.

    Raises:
        DataError: the lock can't be read.
    """
    old = lock if isinstance(lock, Fingerprint) else read_lock(lock)
    new = fingerprint(records, content=old.content)
    out = []
    came = [name for name in new.names if name not in old.names]
    went = [name for name in old.names if name not in new.names]
    if came:
        out.append(f"New classes: {some(came)}.")
    if went:
        out.append(f"Classes that are gone: {some(went)}.")
    if not came and not went and new.names != old.names:
        out.append("The classes are in another order.")
    elif new.names == old.names and new.category_ids != old.category_ids:
        out.append("The category ids of the classes changed.")

    pairs = [(name, old.images[name], now) for name, now in new.images.items() if name in old.images]
    changed = [name for name, a, b in pairs if (a.file_bytes, a.content) != (b.file_bytes, b.content)]
    # A date alone proves nothing: copying a set changes it. A hash does.
    touched = [n for n, a, b in pairs if a.changed_ns != b.changed_ns and a.file_bytes == b.file_bytes]
    out += _count(set(new.images) - set(old.images), "image was added", "images were added")
    out += _count(set(old.images) - set(new.images), "image is gone", "images are gone")
    out += _count(changed, "image changed", "images changed")
    if not old.content:
        out += _count(touched, "image has a new date", "images have a new date", " The length is the same.")
    out += _count(
        [n for n, a, b in pairs if a.labels != b.labels], "image has other labels", "images have other labels"
    )
    return out


def _count(names: Collection[str], one: str, many: str, more: str = "") -> list[str]:
    return [f"{len(names)} {one if len(names) == 1 else many}: {some(sorted(names))}.{more}"] if names else []


def _hash(data: bytes, size: int = 8) -> str:
    return hashlib.blake2b(data, digest_size=size).hexdigest()
