"""`Records` in one file that every process maps: `store_records` and `map_records`.

A file is a line of JSON with the names, then the arrays, each at a multiple of 64 bytes. It is written beside its place
and renamed, and says how long it is, so a file that is not whole is never used.
"""

import hashlib
import json
import mmap
from pathlib import Path

import numpy as np

from boxwright.core.errors import UsageError
from boxwright.core.files import whole_file
from boxwright.data.records import ARRAY_TYPES, Records

_MAGIC = b"boxwright records 1\n"
_ALIGN = 64


def store_records(records: Records, file: Path) -> None:
    """Write records to a file, atomically, and make its folder.

    Raises:
        OSError: the file can't be written.
    """
    places: dict[str, tuple[int, list[int]]] = {}
    end = 0
    for name in ARRAY_TYPES:
        array = getattr(records, name)
        places[name] = end, list(array.shape)
        end += -(-array.nbytes // _ALIGN) * _ALIGN
    head = {
        "root": str(records.root),
        "names": records.names,
        "category_ids": records.category_ids,
        "missing": records.missing,
        "arrays": places,
        "bytes": end,
    }
    # json writes lone surrogates, which stand for bytes of file names, as escapes.
    start = _MAGIC + json.dumps(head).encode() + b"\n"
    # Without a sync: a power failure leaves a file that is too short, or whose offsets don't fit, and it is made again.
    with whole_file(file, sync=False) as draft, draft.open("wb") as out:
        out.write(start.ljust(-(-len(start) // _ALIGN) * _ALIGN))
        for name in ARRAY_TYPES:
            array = getattr(records, name)
            out.write(array.data if array.size else b"")
            out.write(bytes(-array.nbytes % _ALIGN))


def hash_records(records: Records) -> str:
    """Return a hash of all that records hold.

    Example:
        >>> one = Records.from_lists(root="x", paths=["a.jpg"], boxes_xyxy=[[]], class_ids=[[]], names=["cat"])
        >>> hash_records(one) == hash_records(one.select([0])), hash_records(one) == hash_records(one.select([]))
        (True, False)
    """
    words = (str(records.root), records.names, records.category_ids, records.missing)
    digest = hashlib.blake2b(repr(words).encode("utf-8", "surrogatepass"), digest_size=16)
    for name in ARRAY_TYPES:
        array = getattr(records, name)
        digest.update(f"{name}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def map_records(file: Path) -> Records | None:
    """Return the records in a file, whose arrays are mapped; None if there is no whole file of this format.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> one = Records.from_lists(root="x", paths=["a.jpg"], boxes_xyxy=[[1, 2, 3, 4]], class_ids=[0], names=["cat"])
        >>> with TemporaryDirectory() as folder:
        ...     store_records(one, Path(folder, "labels"))
        ...     again = map_records(Path(folder, "labels"))
        >>> again.relative_path(0), again.boxes(0).tolist(), again.names
        ('a.jpg', [[1.0, 2.0, 3.0, 4.0]], ('cat',))
    """
    try:
        with file.open("rb") as opened:
            data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        if data[: len(_MAGIC)] != _MAGIC:
            return None
        line = data.find(b"\n", len(_MAGIC)) + 1
        head = json.loads(data[len(_MAGIC) : line])
        begin = -(-line // _ALIGN) * _ALIGN
        if len(data) != begin + head["bytes"]:
            return None
        arrays = {}
        for name, dtype in ARRAY_TYPES.items():
            at, shape = head["arrays"][name]
            count = int(np.prod(shape, dtype=np.int64))
            arrays[name] = np.frombuffer(data, dtype, count, begin + at).reshape(shape)
        return Records(
            root=Path(head["root"]),
            names=tuple(head["names"]),
            category_ids=tuple(head["category_ids"]),
            missing=tuple(head["missing"]),
            **arrays,
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError, UsageError):
        return None
