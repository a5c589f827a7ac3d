"""`DiskCache`: tiles in one packed file that survives restarts and notices images that have changed.

For each folder of images and input size there are two files. The `.bin` holds pixels, one tile behind the other, and is
only ever appended to. The `.npz` beside it says where each tile lies and which state of the image file it was made
from, and is replaced as a whole. What the index does not name does not count, so a crash at any moment leaves a sound
cache, and processes that read it are never disturbed by one that adds to it.
"""

import fcntl
import hashlib
import mmap
import os
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError
from boxwright.core.log import get_logger
from boxwright.data.records import PathText, Records
from boxwright.data.tile import FileTiles, Tile

_log = get_logger(__name__)

_FORMAT = 1
_CHUNK = 64
_COMMIT_BYTES = 1 << 30
_GONE = (-1, -1)


class DiskCache:
    """Tiles in a file, read through the kernel's page cache, which all processes of a machine share.

    Made or completed when it is opened: images that are new or whose size or time has changed are decoded and added.
    Of several processes that open it at once, one does the work and the others wait. When the disk is full or the
    folder can't be written, a warning says so and the images that are missing are read from their files each time.

    Args:
        source: where tiles come from.
        folder: where to keep the files; by default `.boxwright` in the folder of the images or, where that can't be
            written, `~/.cache/boxwright`.
        threads: how many images to decode at once while the cache is made.
        spare_bytes: how much of the disk to leave free.
    """

    def __init__(
        self, source: FileTiles, *, folder: PathText | None = None, threads: int = 1, spare_bytes: int = 1 << 30
    ) -> None:
        self.records: Records = source.records
        self.size_hw: tuple[int, int] = source.size_hw
        self._source = source
        images = len(self.records)
        self._start = np.full(images, -1, np.int64)
        self._shape = np.zeros((images, 4), np.int32)
        self._pixels: NDArray[np.uint8] = np.zeros(0, np.uint8)
        height, width = self.size_hw
        root = os.path.abspath(self.records.root)
        name = hashlib.sha256(root.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        stem = f"tiles-{height}x{width}-{name}"
        beside, home = Path(root, ".boxwright"), Path.home() / ".cache" / "boxwright"
        for place in (beside, home) if folder is None else (Path(folder),):
            try:
                place.mkdir(parents=True, exist_ok=True)
                with _locked(place / f"{stem}.lock"):
                    self._open(place, stem, threads, spare_bytes)
            except OSError as error:
                _log.warning("No disk cache in %r: %s.", str(place), error.strerror or error)
            else:
                return
        _log.warning("Every image is read from its file each time. Name another folder for the disk cache.")

    def __len__(self) -> int:
        return int((self._start >= 0).sum())

    def tile(self, index: int) -> Tile:
        """Return the tile of one image; see `TileSource`."""
        start = int(self._start[index])
        if start < 0:
            return self._source.tile(index)
        height, width, full_h, full_w = self._shape[index].tolist()
        return Tile(self._pixels[start : start + height * width * 3].reshape(height, width, 3), (full_h, full_w))

    def _open(self, folder: Path, stem: str, threads: int, spare_bytes: int) -> None:
        paths = [self.records.relative_path(i) for i in range(len(self.records))]
        stamps = [_stamp(Path(self.records.root, path)) for path in paths]
        index = _Index.load(folder, stem)
        changed = 0
        missing: list[int] = []
        for i, (path, stamp) in enumerate(zip(paths, stamps, strict=True)):
            entry = index.entries.get(path)
            if stamp != _GONE and (entry is None or entry.stamp != stamp):
                changed += entry is not None
                missing.append(i)
        if changed:
            _log.info("Disk cache: %d images have changed since they were cached.", changed)
        if missing:
            index = self._complete(index, paths, stamps, missing, threads, spare_bytes)
        for i, (path, stamp) in enumerate(zip(paths, stamps, strict=True)):
            entry = index.entries.get(path)
            if entry is not None and entry.stamp == stamp:
                self._start[i], self._shape[i] = entry.start, entry.shape
        if index.length:
            with open(index.data_file, "rb") as file:
                mapped = mmap.mmap(file.fileno(), index.length, prot=mmap.PROT_READ)
            self._pixels = np.frombuffer(mapped, np.uint8)
        _log.info("Disk cache: %d of %d images in %r.", len(self), len(paths), str(index.data_file))

    def _complete(
        self,
        index: "_Index",
        paths: Sequence[str],
        stamps: Sequence[tuple[int, int]],
        missing: Sequence[int],
        threads: int,
        spare_bytes: int,
    ) -> "_Index":
        """Add tiles and return the index of all that is safely on disk."""
        _log.info("Disk cache: adding %d images to %r.", len(missing), str(index.data_file))
        saved, index = index, index.copy()
        reason = ""
        try:
            # Not "ab": what a crash left behind the last tile is overwritten.
            with open(index.data_file, "r+b" if index.data_file.exists() else "w+b") as file:
                file.truncate(index.length)
                file.seek(index.length)
                for i, tile in _decoded(self._source, missing, threads):
                    if shutil.disk_usage(index.data_file.parent).free < spare_bytes + tile.pixels.nbytes:
                        reason = f"only {spare_bytes / 1e9:.1f} GB of the disk are free"
                        break
                    file.write(tile.pixels.data)
                    shape = (tile.pixels.shape[0], tile.pixels.shape[1], *tile.size_hw)
                    index.entries[paths[i]] = _Entry(index.length, shape, stamps[i])
                    index.length += tile.pixels.nbytes
                    if index.length - saved.length >= _COMMIT_BYTES:
                        saved = _commit(index, file)
                saved = _commit(index, file)
        except OSError as error:
            reason = error.strerror or str(error)
            if index.data_file.exists():
                os.truncate(index.data_file, saved.length)  # the last state that the disk is known to hold
        if reason:
            _log.warning(
                "The disk cache %r is not complete: %s. It holds %d images; the others are read each time.",
                str(index.data_file), reason, len(saved.entries),
            )  # fmt: skip
        return saved


@dataclass(slots=True)
class _Entry:
    start: int
    shape: tuple[int, int, int, int]
    stamp: tuple[int, int]

    @property
    def length(self) -> int:
        return self.shape[0] * self.shape[1] * 3


@dataclass(slots=True)
class _Index:
    """Where tiles lie in a data file, by relative path of the image."""

    file: Path
    generation: int
    length: int
    entries: dict[str, _Entry]

    @property
    def data_file(self) -> Path:
        return self.file.with_name(f"{self.file.stem}-{self.generation}.bin")

    def copy(self) -> "_Index":
        return _Index(self.file, self.generation, self.length, dict(self.entries))

    @classmethod
    def load(cls, folder: Path, stem: str) -> "_Index":
        """Return the index of a folder, an empty one where there is none that can be used."""
        file = folder / f"{stem}.npz"
        empty = cls(file, 0, 0, {})
        try:
            with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as saved:
                version, generation, length = saved["head"].tolist()
                if version != _FORMAT:
                    return empty
                paths = saved["paths"].tobytes().decode("utf-8", "surrogatepass").split("\0")
                numbers = saved["numbers"].tolist()
            entries = {
                path: _Entry(row[0], (row[1], row[2], row[3], row[4]), (row[5], row[6]))
                for path, row in zip(paths, numbers, strict=len(numbers) > 0)
            }
            index = cls(file, generation, length, entries)
            if index.data_file.stat().st_size < length:
                raise ValueError("the data file is shorter than its index says")
        except FileNotFoundError:
            return empty
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            _log.warning("The disk cache %r can't be used and is made again: %s.", str(file), error)
            return empty
        # Tiles of images that changed or went are never overwritten: others may be reading. A file that is mostly such
        # leftovers is made again under another name.
        if length > 2 * sum(entry.length for entry in entries.values()):
            index.data_file.unlink(missing_ok=True)
            return cls(file, generation + 1, 0, {})
        return index

    def save(self) -> None:
        numbers = np.array(
            [(e.start, *e.shape, *e.stamp) for e in self.entries.values()], np.int64
        ).reshape(-1, 7)  # fmt: skip
        paths = "\0".join(self.entries).encode("utf-8", "surrogatepass")
        half_written = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        try:
            with open(half_written, "wb") as file:
                np.savez(
                    file,
                    head=np.array([_FORMAT, self.generation, self.length], np.int64),
                    paths=np.frombuffer(paths, np.uint8),
                    numbers=numbers,
                )
                file.flush()
                os.fsync(file.fileno())
            half_written.replace(self.file)
        finally:
            half_written.unlink(missing_ok=True)


def _commit(index: _Index, file: BinaryIO) -> _Index:
    """Put pixels, then index on the disk, and return a copy of what is there now."""
    file.flush()
    os.fsync(file.fileno())
    index.save()
    return index.copy()


def _decoded(source: FileTiles, indices: Sequence[int], threads: int) -> Iterator[tuple[int, Tile]]:
    """Give the tiles of the images that can be read, in order, never many at once."""

    def read(index: int) -> Tile | None:
        try:
            return source.tile(index)
        except DataError:
            return None  # who asks for this image gets the error

    with ThreadPoolExecutor(threads, "boxwright-cache") as pool:
        for at in range(0, len(indices), _CHUNK):
            chunk = indices[at : at + _CHUNK]
            for index, tile in zip(chunk, pool.map(read, chunk), strict=True):
                if tile is not None:
                    yield index, tile


def _stamp(path: Path) -> tuple[int, int]:
    """Return size and time of a file: when either changes, the tile is made again."""
    try:
        stat = path.stat()
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
