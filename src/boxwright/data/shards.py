"""Images in shards: tar or parquet files of a thousand images each, on this machine or behind a URL.

The path of such an image leads into its shard: `images/train/000007.tar/000007042.jpg`. A tar file on this machine is
read in place. A parquet file is unpacked to a tar file in the cache folder, and a shard behind a URL is fetched there,
when the first of its images is needed. Those used longest ago are removed when the disk gets full.
"""

import hashlib
import io
import os
import shutil
import tarfile
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core.environment import cache_folder
from boxwright.core.errors import DataError, WorkerError
from boxwright.core.files import locked, whole_file
from boxwright.core.log import get_logger
from boxwright.core.packages import require
from boxwright.data.records import PathText, Records, unpack_paths
from boxwright.vision.decode import MOST_BYTES, read_file

if TYPE_CHECKING:  # it takes 10 ms of the start of `predict`
    from numpy.random import Generator

_log = get_logger(__name__)

SHARD_SUFFIXES = (".tar", ".parquet")

MIXED = 4
"""Shards whose images are shuffled together."""

MOST_GROUP_BYTES = 1 << 30
"""The largest row group of a parquet file, unpacked, that is read."""

_OPEN = 32  # tar files that a process keeps open
_ROWS = 64  # of a parquet file that are in memory at once
_BLOCK = 512
_SPARE_BYTES = 2 << 30  # of the disk, left free
_KEPT = 2 * MIXED  # shards that stay even if the disk is nearly full
_TRIES = 3


def shard_of(path: PathText) -> Path | None:
    """Return the shard that the path of an image leads into, None for a file of its own.

    Example:
        >>> shard_of("images/000007.tar/000007042.jpg").as_posix(), shard_of("images/7.jpg")
        ('images/000007.tar', None)
    """
    folder = os.path.dirname(os.fspath(path))
    return Path(folder) if folder.endswith(SHARD_SUFFIXES) and not os.path.isdir(folder) else None


def address_file(folder: Path) -> Path:
    """Return the file beside a fetched set that holds its URL. What is in the set itself can't name one."""
    return folder.with_name(f"{folder.name}.url")


def read_encoded(path: PathText) -> bytes:
    """Return the bytes of an image, which is a file or in a shard.

    Raises:
        DataError: it can't be read.
        WorkerError: its shard can't be fetched.
    """
    shard = shard_of(path)
    if shard is None:
        return read_file(path)
    try:
        return read_member(shard, os.path.basename(path))
    except OSError as error:
        raise DataError(f"Cannot read image {os.fspath(path)!r}: {error.strerror}. Convert the set again.") from error


def read_member(shard: Path, name: str) -> bytes:
    """Return the bytes of an image in a shard.

    Raises:
        OSError: the shard does not exist, is damaged, or has no such image.
        WorkerError: it can't be fetched.
    """
    for _ in range(_TRIES):
        found = os.stat(shard)
        try:
            return _open(str(shard), found.st_size, found.st_mtime_ns).read(name)
        except FileNotFoundError as error:
            gone = error  # another process has just removed it from the cache
    raise gone


def stat_image(path: PathText) -> os.stat_result:
    """Return the state of an image's file, or of its shard.

    Raises:
        OSError: there is none.
    """
    return os.stat(shard_of(path) or path)


def shard_starts(records: Records) -> NDArray[np.int64] | None:
    """Return where the images of each shard begin, and the number of images last; None if not all are in shards."""
    if not len(records) or not os.path.dirname(records.relative_path(0)).endswith(SHARD_SUFFIXES):
        return None
    folders = [os.path.dirname(name) for name in unpack_paths(records)]
    if any(shard_of(os.path.join(records.root, folder, "x")) is None for folder in dict.fromkeys(folders)):
        return None
    changes = [n for n in range(1, len(folders)) if folders[n] != folders[n - 1]]
    return np.array([0, *changes, len(folders)], np.int64)


def shuffle_shards(
    starts: NDArray[np.int64], rng: "Callable[[int], Generator]"
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all images in a shuffled order that needs few shards at a time, and where each group of shards begins.

    The shards are shuffled, then the images of each `MIXED` of them.

    Args:
        starts: see `shard_starts`.
        rng: gives the random numbers of the shards (0) and of each group (1, 2, …).

    Example:
        >>> order, groups = shuffle_shards(np.arange(0, 60, 10), np.random.default_rng)
        >>> sorted(order.tolist()) == list(range(50)), groups.tolist()
        (True, [0, 40, 50])
    """
    shards = rng(0).permutation(len(starts) - 1)
    parts, bounds = [], [0]
    for number, first in enumerate(range(0, len(shards), MIXED), start=1):
        images = np.concatenate([np.arange(starts[s], starts[s + 1]) for s in shards[first : first + MIXED]])
        parts.append(rng(number).permutation(images))
        bounds.append(bounds[-1] + len(images))
    return np.concatenate(parts), np.array(bounds, np.int64)


def add_member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Append a file to a tar file."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


class _Tar:
    """A tar file and where its members are. `pread` has no position, so threads and forks can share it."""

    def __init__(self, file: Path) -> None:
        self._name = str(file)
        self._fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)
        self._members: dict[bytes, tuple[int, int]] = {}
        at = 0
        while len(head := os.pread(self._fd, _BLOCK, at)) == _BLOCK and head[0]:
            try:
                size = int(head[124:136].strip(b"\0 ") or b"0", 8)
            except ValueError as error:
                raise OSError(0, f"the shard {self._name!r} is damaged") from error
            # Other entries have no image, or a name that our shards don't use.
            if head[156:157] in (b"0", b"\0"):
                self._members[head[:100].partition(b"\0")[0]] = at + _BLOCK, size
            at += _BLOCK + -(-size // _BLOCK) * _BLOCK

    def read(self, name: str) -> bytes:
        at, size = self._members.get(os.fsencode(name), (0, -1))
        if not 0 <= size <= MOST_BYTES:
            raise OSError(0, f"the shard {self._name!r} has no such image")
        data = os.pread(self._fd, size, at)
        if len(data) < size:
            raise OSError(0, f"the shard {self._name!r} is cut off")
        return data


@lru_cache(maxsize=_OPEN)
def _open(shard: str, size: int, changed_ns: int) -> _Tar:
    place = Path(shard)
    return _Tar(place if size and place.suffix == ".tar" else _keep(place, size, changed_ns))


def _keep(shard: Path, size: int, changed_ns: int) -> Path:
    """Return a shard's tar file in the cache folder; one process of a machine makes it."""
    folder = cache_folder("shards")
    token = hashlib.sha256(f"{os.path.abspath(shard)}\0{size}\0{changed_ns}".encode("utf-8", "surrogatepass"))
    file = folder / f"{token.hexdigest()[:24]}.tar"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(file.with_suffix(".lock")):
        if not file.exists():
            with whole_file(file) as draft:
                if size:
                    _unpack(shard, draft)
                else:
                    _fetch(shard, draft)
        with suppress(OSError):
            os.utime(file)  # says when it was last used
        _make_room(file)
    return file


def _make_room(newest: Path) -> None:
    with suppress(OSError):
        used = sorted(newest.parent.glob("*.tar"), key=lambda file: file.stat().st_mtime_ns)
        for file in used[:-_KEPT]:
            if shutil.disk_usage(newest.parent).free >= _SPARE_BYTES:
                return
            file.unlink(missing_ok=True)


def _fetch(shard: Path, draft: Path) -> None:
    """Copy a shard from its URL, as a tar file."""
    url = _url_of(shard)
    is_tar = shard.suffix == ".tar"
    target = draft if is_tar else draft.with_suffix(".fetched")
    try:
        for number in range(_TRIES):
            try:
                system, path = _file_system(url)
                start = time.monotonic()
                system.get_file(path, str(target))
                break
            except OSError as error:
                if number == _TRIES - 1:
                    raise WorkerError(f"The shard {url!r} can't be fetched: {error}. Resume when it can.") from error
                time.sleep(2**number)
        seconds = time.monotonic() - start
        _log.debug("Fetched %s, %.1f MB in %.1f s.", url, target.stat().st_size / 1e6, seconds)
        if not is_tar:
            _unpack(target, draft)
    finally:
        if not is_tar:
            target.unlink(missing_ok=True)


def _url_of(shard: Path) -> str:
    root = Path(os.path.realpath(cache_folder("data")))
    try:
        token, *names = Path(os.path.realpath(shard)).relative_to(root).parts
        url = address_file(root / token).read_text(encoding="utf-8").strip()
    except (FileNotFoundError, ValueError) as error:
        raise OSError(0, f"the shard {str(shard)!r} is empty") from error
    return "/".join((url, *names))


def _file_system(url: str) -> tuple[Any, str]:
    require("fsspec", extra="batch", by="Reading shards by URL")
    import fsspec

    system, path = fsspec.core.url_to_fs(url)
    return system, path


def _unpack(shard: Path, draft: Path) -> None:
    """Write the images of a parquet file as a tar file."""
    require("pyarrow", extra="batch", by="Reading parquet shards")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(shard) as table, tarfile.open(draft, "w", format=tarfile.USTAR_FORMAT) as tar:
            groups = [table.metadata.row_group(n).total_byte_size for n in range(table.num_row_groups)]
            if max(groups, default=0) > MOST_GROUP_BYTES:
                raise OSError(0, f"a row group of the shard {str(shard)!r} has {max(groups) / 1e9:.1f} GB")
            for rows in table.iter_batches(_ROWS, columns=["key", "image"]):
                for key, image in zip(rows["key"].to_pylist(), rows["image"].to_pylist(), strict=True):
                    add_member(tar, key, image)
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise OSError(0, f"the shard {str(shard)!r} can't be read as parquet: {error}") from error
