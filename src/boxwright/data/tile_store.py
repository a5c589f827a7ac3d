"""`TileStore`: tiles in a file, on disk or in memory, that any number of processes read and add to at the same time.

The file is a head, a table and the pixels, one tile after the other. A process appends pixels, which the system
does for one at a time, then writes an entry of the table with a checksum of itself and of the pixels. An entry that
does not match counts as none, so a process or machine that stops at any moment leaves nothing half in use. Nothing that
others may be reading is overwritten or cut off: an outdated file is replaced, and those who have it open keep it.
"""

import errno
import fcntl
import mmap
import os
import shutil
import struct
import threading
import weakref
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boxwright.core.files import locked, whole_file
from boxwright.core.log import get_logger
from boxwright.data.tile import Tile

_log = get_logger(__name__)

SUFFIX = ".tiles"

_MAGIC = b"boxwright tiles 2"
_HEAD = 4096
_ENTRY = struct.Struct("<QQ4iI28x")  # key, start, height and width of the tile, those of its image, checksum
_FEWEST = 4096  # entries of a table
_MOST_STEPS = 64  # from an entry's first place in the table to its last
_CHECK_BYTES = 16 << 20  # free space is measured again after adding this much
_SPARE_BYTES = 1 << 30  # of a disk, left free at least


class Place(NamedTuple):
    """Where a tile lies in a store, and its height and width and those of its image."""

    start: int
    height: int
    width: int
    full_height: int
    full_width: int


class TileStore:
    """Tiles by key in an open file; safe for threads, forks and other processes.

    Args:
        fd: the file, opened to append; it is closed with the store.
        name: what log lines call it.
        limit_bytes: how large its pixels may get.
        may_grow: says whether there is space for some more.
    """

    def __init__(
        self, fd: int, name: str, *, limit_bytes: float = inf, may_grow: Callable[[], bool] = lambda: True
    ) -> None:
        self.name = name
        self.full = False
        self._limit_bytes, self._may_grow = limit_bytes, may_grow
        self._first = _HEAD + _count_slots(fd) * _ENTRY.size
        self._table = mmap.mmap(fd, self._first)
        self._pixels = np.zeros(0, np.uint8)
        self._unchecked = _CHECK_BYTES  # since free space was last measured
        self._own(fd)

    def _own(self, fd: int) -> None:
        self._fd, self._pid, self._lock = fd, os.getpid(), threading.Lock()
        weakref.finalize(self, os.close, fd)

    def __len__(self) -> int:
        return _count_used(self._table)

    @property
    def pixel_bytes(self) -> int:
        """The size of the file without head and table."""
        return os.fstat(self._fd).st_size - self._first

    @property
    def address(self) -> tuple[str, str]:
        """The machine, and the path by which its other processes can open the file, even if that has no name."""
        return _machine(), f"/proc/{os.getpid()}/fd/{self._fd}"

    def join(self, addresses: Sequence[tuple[str, str]]) -> "TileStore":
        """Return the first of several processes' stores that can be opened here, with the limits of this one."""
        for machine, path in addresses:
            if (machine, path) == self.address:
                break
            if machine == _machine():
                with suppress(OSError):
                    return TileStore(_open(path), self.name, limit_bytes=self._limit_bytes, may_grow=self._may_grow)
        return self

    def find(self, key: int) -> Place | None:
        """Return where the tile with a key is, None if there is none or it is damaged."""
        for at in self._steps(key):
            found, *numbers, checksum = _ENTRY.unpack_from(self._table, at)
            if found in (0, key):
                break
        else:
            return None
        place = Place(*numbers)
        if not found or min(place) < 0 or place.height * place.width > 1 << 32:
            return None
        with suppress(ValueError):  # the file ends before it
            if _checksum(key, place, self.read(place).pixels) == checksum:
                return place
        return None

    def read(self, place: Place) -> Tile:
        """Return the tile at a place that `find` or `add` returned."""
        start, height, width = place[:3]
        end = start + height * width * 3
        pixels = self._pixels
        if end > len(pixels):
            size = os.fstat(self._fd).st_size
            self._pixels = pixels = np.frombuffer(mmap.mmap(self._fd, size, prot=mmap.PROT_READ), np.uint8)
        return Tile(pixels[start:end].reshape(height, width, 3), (place.full_height, place.full_width))

    def add(self, key: int, tile: Tile) -> Place | None:
        """Add a tile and return where it is; None if the store is full."""
        if self._pid != os.getpid():  # forks share a position in the file, which says where an added tile begins
            self._own(_open(f"/proc/self/fd/{self._fd}"))
        pixels = np.ascontiguousarray(tile.pixels)
        with self._lock:
            if self.full or not self._has_space(pixels.nbytes):
                return None
            try:
                if os.write(self._fd, pixels.data.cast("B")) < pixels.nbytes:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                self._stop(error.strerror or str(error))
                return None
            start = os.lseek(self._fd, 0, os.SEEK_CUR) - pixels.nbytes
            height, width = pixels.shape[:2]
            place = Place(start, height, width, *tile.size_hw)
            for at in self._steps(key):
                if _ENTRY.unpack_from(self._table, at)[0] in (0, key):
                    _ENTRY.pack_into(self._table, at, key, *place, _checksum(key, place, pixels))
                    break
        return place

    def _steps(self, key: int) -> range:
        """Return where in the table an entry may be."""
        slots = (self._first - _HEAD) // _ENTRY.size - _MOST_STEPS
        first = _HEAD + key % slots * _ENTRY.size
        return range(first, first + _MOST_STEPS * _ENTRY.size, _ENTRY.size)

    def _has_space(self, size: int) -> bool:
        if self.pixel_bytes + size > self._limit_bytes:
            self._stop("it may not grow any more")
        self._unchecked += size
        if self._unchecked > _CHECK_BYTES:
            self._unchecked = 0
            if not self._may_grow():
                self._stop("free space is short")
        return not self.full

    def _stop(self, reason: str) -> None:
        if not self.full:
            self.full = True
            _log.warning(
                "The %s is full (%s): it holds %d images, and the others are read from their files.",
                self.name, reason, len(self),
            )  # fmt: skip


def memory_store(images: int, *, limit_bytes: float, may_grow: Callable[[], bool]) -> TileStore:
    """Return an empty store in memory, with entries for so many tiles.

    Raises:
        OSError: its table does not fit into memory.
    """
    fd = os.memfd_create("boxwright-tiles")  # unlike /dev/shm, it has no limit of its own
    try:
        _write_empty(fd, images)
        return TileStore(_open(f"/proc/self/fd/{fd}"), "RAM cache", limit_bytes=limit_bytes, may_grow=may_grow)
    finally:
        os.close(fd)


def disk_store(file: Path, images: int, needed_bytes: int, *, spare_bytes: int | None = None) -> TileStore:
    """Return the store in a file, which is made if there is none that can be used.

    Args:
        file: its path.
        images: how many tiles it must have entries for.
        needed_bytes: how large they are. To make room for them, other stores in the folder that no process has open are
            removed, those used longest ago first.
        spare_bytes: how much of the disk to leave free; by default see `tile_room`.

    Raises:
        OSError: it can't be made.
    """
    folder = file.parent
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "tiles.lock"):
        fd = _open_usable(file, images)
        if fd is None:
            with whole_file(file, sync=False) as draft, draft.open("wb") as made:
                _write_empty(made.fileno(), images)
            fd = _open(file)
        fcntl.flock(fd, fcntl.LOCK_SH)  # says that it is in use
        os.utime(file)  # and when it was last used
        spare = tile_room(folder)[1] if spare_bytes is None else spare_bytes
        store = TileStore(fd, "disk cache", may_grow=lambda: _free_bytes(folder) >= spare + _CHECK_BYTES)
        _make_room(file, spare + max(needed_bytes - store.pixel_bytes, 0))
    allowed = store.pixel_bytes + max(_free_bytes(folder) - spare, 0)
    _log.info(
        "Disk cache %r: %d images need about %s, and %s may be used. It holds %d.",
        str(file), images, format_bytes(needed_bytes), format_bytes(allowed), len(store),
    )  # fmt: skip
    return store


def tile_room(folder: Path) -> tuple[int, int]:
    """Return how much of a disk all stores in a folder may take, and how much they must leave free.

    They may take half of what is free without them, and must leave 1 GB.
    """
    held = sum(_size(other) for other in folder.glob(f"*{SUFFIX}"))
    free = _free_bytes(folder) + held
    spare = min(max(free // 2, _SPARE_BYTES), free)
    return free - spare, spare


def format_bytes(size: int) -> str:
    """Return a size for a message, in GB or MB."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _make_room(file: Path, needed_bytes: int) -> None:
    """Remove what no process has open, used longest ago first, until so much of the disk is free."""
    with suppress(OSError):  # another process may remove some too
        for _, other in sorted((other.stat().st_mtime_ns, other) for other in file.parent.iterdir()):
            if _free_bytes(file.parent) >= needed_bytes:
                return
            if other == file or other.suffix == ".lock" or not other.is_file():
                continue
            with other.open("rb") as opened:
                try:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                _log.info("Disk cache: removing %r, to make room.", str(other))
                other.unlink()


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # another process has just removed it
        return 0


def _open(path: str | Path) -> int:
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)


def _open_usable(file: Path, images: int) -> int | None:
    """Open a store that has entries for so many tiles, and of them at least a quarter left."""
    try:
        fd = _open(file)
    except FileNotFoundError:
        return None
    try:
        slots = _count_slots(fd)
        with mmap.mmap(fd, _HEAD + slots * _ENTRY.size, prot=mmap.PROT_READ) as table:
            if slots >= _slots_for(images) and _count_used(table) <= 0.75 * slots:
                return fd
    except ValueError as error:
        _log.warning("The disk cache %r can't be used and is made again: %s.", str(file), error)
    os.close(fd)
    return None


def _write_empty(fd: int, images: int) -> None:
    slots = _slots_for(images)
    # All blocks of the table: it is written through memory, where a full disk would kill the process.
    os.posix_fallocate(fd, 0, _HEAD + slots * _ENTRY.size)
    os.pwrite(fd, _MAGIC + slots.to_bytes(8, "little"), 0)


def _slots_for(images: int) -> int:
    return max(2 * images, _FEWEST) + _MOST_STEPS


def _count_slots(fd: int) -> int:
    head = os.pread(fd, len(_MAGIC) + 8, 0)
    if head[:-8] != _MAGIC:
        raise ValueError("it does not begin like one")
    return int.from_bytes(head[-8:], "little")


def _count_used(table: mmap.mmap) -> int:
    keys = np.frombuffer(table, np.uint64, offset=_HEAD)[:: _ENTRY.size // 8]
    return int(np.count_nonzero(keys))


def _checksum(key: int, place: Place, pixels: NDArray[np.uint8]) -> int:
    return zlib.crc32(pixels.data.cast("B"), zlib.crc32(_ENTRY.pack(key, *place, 0)))


def _machine() -> str:
    """Return what two processes that see the same processes have in common."""
    return Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
