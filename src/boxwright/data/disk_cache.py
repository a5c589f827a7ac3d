"""`map_tiles`: tiles in one packed file that survives restarts and detects images that have changed.

For each folder of images and input size there are two files. The `.bin` holds pixels, one tile after the other, and is
only ever appended to. The `.npz` beside it says where each tile lies and which state of the image file it was made
from, and is replaced atomically. Only what the index names counts, so a crash at any moment leaves a sound cache, and
a process that adds to it never disturbs those that read it.
"""

import fcntl
import hashlib
import mmap
import os
import shutil
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from boxwright.core.environment import cache_folder
from boxwright.core.errors import DataError
from boxwright.core.files import whole_file
from boxwright.core.log import get_logger
from boxwright.data.records import PathText
from boxwright.data.shards import stat_image
from boxwright.data.threads import map_threads, with_progress
from boxwright.data.tile import FileTiles, Tile, tile_bytes

_log = get_logger(__name__)

_FORMAT = 1
_CHUNK = 64  # tiles that may be decoded before they are written
_COMMIT_BYTES = 1 << 30
_IN_USE_S = 86_400.0
_GONE = (-1, -1)

MappedTiles: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int32]]
"""Pixels, and start and shape of each image's tile, as `TileCache` takes them."""


def map_tiles(files: FileTiles, *, folder: PathText | None, threads: int, spare_bytes: int) -> MappedTiles:
    """Return the tiles of a set from the disk cache, which is made or completed first.

    All processes of a machine share its pages. Images that are new, or whose size or time has changed, are decoded and
    added. Of several processes that open it at once, one does the work and the others wait. When the disk is full or
    the folder can't be written, a warning says so, and the missing images are read from their files.

    Args:
        files: where tiles come from.
        folder: of the cache's files; by default `~/.cache/boxwright/tiles` (BOXWRIGHT_CACHE moves it).
        threads: how many images to decode at once while the cache is made.
        spare_bytes: how much of the disk to leave free.
    """
    height, width = files.size_hw
    root = os.path.abspath(files.records.root)
    name = hashlib.sha256(root.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    place = cache_folder("tiles") if folder is None else Path(folder)
    file = place / f"tiles-{height}x{width}-{name}.npz"
    try:
        place.mkdir(parents=True, exist_ok=True)
        with _locked(file.with_suffix(".lock")):
            return _open(files, file, threads, spare_bytes)
    except OSError as error:
        _log.warning("No disk cache in %r: %s.", str(place), error.strerror or error)
    _log.warning("Every image is read from its file each time. Name another folder for the disk cache.")
    images = len(files.records)
    return np.zeros(0, np.uint8), np.zeros(images, np.int64), np.zeros((images, 4), np.int32)


def _open(files: FileTiles, file: Path, threads: int, spare_bytes: int) -> MappedTiles:
    images = len(files.records)
    paths = [files.records.relative_path(i) for i in range(images)]
    stamps = [_stamp(files.records.path(i)) for i in range(images)]
    index = _Index.load(file)
    # Tiles of images that changed or went are never overwritten: other processes may be reading. A file that is mostly
    # such leftovers is made again under another name.
    if index.length > 2 * sum(height * width * 3 for _, height, width, *_ in index.entries.values()):
        index.data_file.unlink(missing_ok=True)
        index = _Index(file, index.generation + 1)
    missing = [i for i in range(images) if stamps[i] != _GONE and index.entries.get(paths[i], ())[5:] != stamps[i]]
    changed = sum(paths[i] in index.entries for i in missing)
    if changed:
        _log.info("Disk cache: %d images have changed since they were cached.", changed)
    if missing:
        index = _complete(files, index, [(i, paths[i], stamps[i]) for i in missing], threads, spare_bytes)
    pixels, start, shape = np.zeros(0, np.uint8), np.zeros(images, np.int64), np.zeros((images, 4), np.int32)
    for i, path in enumerate(paths):
        entry = index.entries.get(path, ())
        if entry[5:] == stamps[i]:
            start[i], shape[i] = entry[0], entry[1:5]
    if index.length:
        with open(index.data_file, "rb") as data:
            pixels = np.frombuffer(mmap.mmap(data.fileno(), index.length, prot=mmap.PROT_READ), np.uint8)
        with suppress(OSError):
            os.utime(index.file)  # says when it was last used
    stored = int((shape[:, 0] > 0).sum())
    _log.info("Disk cache: %d of %d images in %r.", stored, images, str(index.data_file))
    return pixels, start, shape


def _complete(
    files: FileTiles, index: "_Index", missing: Sequence[tuple[int, str, tuple[int, int]]], threads: int, spare: int
) -> "_Index":
    """Add tiles (image, path and stamp of each) and return the index of everything that is safely on disk."""
    needed = int(tile_bytes(files.records, files.size_hw)[[i for i, _, _ in missing]].sum())
    _make_room(index.file, needed + spare)
    _log.info(
        "Disk cache: adding %d images, about %.2f GB, to %r; %.1f GB of the disk are free.",
        len(missing), needed / 1e9, str(index.data_file), shutil.disk_usage(index.file.parent).free / 1e9,
    )  # fmt: skip

    def read(number: int) -> Tile | None:
        try:
            return files.tile(missing[number][0])
        except DataError:
            return None  # raised again when the image is asked for

    reason, uncommitted = "", 0
    try:
        # Not "ab": what a crash left behind the last tile is overwritten.
        with open(index.data_file, "r+b" if index.data_file.exists() else "w+b") as data:
            data.truncate(index.length)
            data.seek(index.length)

            def commit() -> None:
                data.flush()
                os.fsync(data.fileno())  # the pixels first, then the index that names them
                index.save()

            tiles = with_progress(
                map_threads(read, len(missing), threads, chunk=_CHUNK), len(missing), "images resized"
            )
            for (_, path, stamp), tile in zip(missing, tiles, strict=True):
                if tile is None:
                    continue
                if shutil.disk_usage(index.data_file.parent).free < spare + tile.pixels.nbytes:
                    reason = f"only {spare / 1e9:.1f} GB of the disk are free"
                    break
                data.write(tile.pixels.data)
                index.entries[path] = (index.length, *tile.pixels.shape[:2], *tile.size_hw, *stamp)
                index.length += tile.pixels.nbytes
                uncommitted += tile.pixels.nbytes
                if uncommitted >= _COMMIT_BYTES:
                    commit()
                    uncommitted = 0
            commit()
    except OSError as error:
        reason = error.strerror or str(error)
    saved = _Index.load(index.file)
    if reason:
        if index.data_file.exists():
            os.truncate(index.data_file, saved.length)  # the last state that the disk is known to hold
        _log.warning(
            "The disk cache %r is not complete: %s. It holds %d images; the others are read each time.",
            str(index.data_file), reason, len(saved.entries),
        )  # fmt: skip
    return saved


def _make_room(file: Path, needed: int) -> None:
    """Remove tiles of other sets, those used longest ago first, while the disk has less free than is needed.

    What was used within a day stays: a run may be about to open it again.
    """
    with suppress(OSError):
        others = sorted((other.stat().st_mtime, other) for other in file.parent.glob("tiles-*.npz") if other != file)
        for used_s, other in others:
            if shutil.disk_usage(file.parent).free >= needed or used_s > time.time() - _IN_USE_S:
                return
            _log.info("Disk cache: removing %r, to make room.", str(other))
            other.unlink(missing_ok=True)
            for data in file.parent.glob(f"{other.stem}-*.bin"):
                data.unlink(missing_ok=True)


@dataclass(slots=True)
class _Index:
    """Where tiles lie in a data file.

    Attributes:
        file: where the index is stored.
        generation: part of the data file's name.
        length: how much of the data file counts.
        entries: by relative path of the image: start, height and width of the tile, those of the image, and the
            file's size and time.
    """

    file: Path
    generation: int = 0
    length: int = 0
    entries: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def data_file(self) -> Path:
        return self.file.with_name(f"{self.file.stem}-{self.generation}.bin")

    @classmethod
    def load(cls, file: Path) -> "_Index":
        """Return the stored index, an empty one if there is none that can be used."""
        try:
            with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as saved:
                version, generation, length = saved["head"].tolist()
                if version != _FORMAT:
                    return cls(file)
                paths = saved["paths"].tobytes().decode("utf-8", "surrogatepass").split("\0")
                numbers = [tuple(row) for row in saved["numbers"].tolist()]
            index = cls(file, generation, length, dict(zip(paths, numbers, strict=len(numbers) > 0)))
            if index.data_file.stat().st_size < length:
                raise ValueError("the data file is shorter than its index says")
        except FileNotFoundError:
            return cls(file)
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            _log.warning("The disk cache %r can't be used and is made again: %s.", str(file), error)
            return cls(file)
        return index

    def save(self) -> None:
        paths = "\0".join(self.entries).encode("utf-8", "surrogatepass")
        with whole_file(self.file) as draft:
            np.savez(
                draft,
                head=np.array([_FORMAT, self.generation, self.length], np.int64),
                paths=np.frombuffer(paths, np.uint8),
                numbers=np.array(list(self.entries.values()), np.int64).reshape(-1, 7),
            )


def _stamp(path: Path) -> tuple[int, int]:
    """Return size and time of a file; a tile is made again when either changes."""
    try:
        stat = stat_image(path)
    except (OSError, ValueError):
        return _GONE
    return stat.st_size, stat.st_mtime_ns


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with open(file, "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("Disk cache: waiting for another process that is making it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # the lock ends with the file
