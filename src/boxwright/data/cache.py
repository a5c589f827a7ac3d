"""`TileCache`: tiles stored in memory or in a file, and `open_cache`, which makes the cache that a user names.

A cache never changes a sample: it returns the same pixels as the files, only sooner.
"""

import logging
import mmap
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import UsageError, check_choice
from boxwright.core.log import get_logger
from boxwright.core.memory import read_memory
from boxwright.data.disk_cache import map_tiles
from boxwright.data.records import PathText, Records
from boxwright.data.tile import FileTiles, RecentTiles, Tile, TileRing, tile_bytes

_log = get_logger(__name__)

CacheKind: TypeAlias = Literal["none", "ram", "disk"]

_CHECK_BYTES = 16 << 20  # a RAM cache measures free memory again after adding this much
_SPARE_BYTES = 512 << 20  # never taken: the model and its gradients need memory too
_SHARE = 0.7  # of the free memory


def _read_free_bytes() -> int:
    return read_memory().usable_bytes


class TileCache:
    """Tiles stored in memory that this process shares with its forks.

    `TileCache.in_ram` stores tiles when they are first used, `TileCache.on_disk` maps a file of them, and
    `TileCache(files)` stores none. Tiles that are not stored come from the files, and the last few are kept (`recent`).

    Threads and processes need no lock: two that read the same image at once write the same bytes, and readers go by
    the tile's height, which is written last (x86 shows writes to other cores in order).

    Args:
        files: where tiles come from.
        pixels: the memory, uint8.
        start: where in `pixels` the tile of each image begins, int64 (N,).
        shape: height and width of each tile, then of its image, int32 (N, 4); 0 for a tile that is not stored.
        room: the bytes reserved for each tile, int64 (N,); by default nothing is added.
        free_bytes: measures free memory.
    """

    def __init__(
        self,
        files: FileTiles,
        pixels: NDArray[np.uint8] | None = None,
        start: NDArray[np.int64] | None = None,
        shape: NDArray[np.int32] | None = None,
        room: NDArray[np.int64] | None = None,
        *,
        free_bytes: Callable[[], int] = _read_free_bytes,
    ) -> None:
        self.files = files
        self.recent: RecentTiles | TileRing = RecentTiles(files)
        images = len(files.records)
        self._pixels = np.zeros(0, np.uint8) if pixels is None else pixels
        self._start = np.zeros(images, np.int64) if start is None else start
        self._shape = np.zeros((images, 4), np.int32) if shape is None else shape
        self._room = np.zeros(images, np.int64) if room is None else room
        self._free_bytes = free_bytes
        self._full = mmap.mmap(-1, 1)
        self._unchecked = _CHECK_BYTES  # since free memory was last measured

    @classmethod
    def in_ram(
        cls,
        files: FileTiles,
        *,
        limit_bytes: int | None = None,
        processes: int = 1,
        free_bytes: Callable[[], int] = _read_free_bytes,
    ) -> "TileCache":
        """Return a cache that stores as many tiles as fit in memory, each from its first use on.

        Each image has its place from the start, and the system provides pages when they are first written. Free memory
        (within the limits of control groups) is measured again after every 16 MB; when it runs short, the cache stays
        as it is and a warning is logged.

        Args:
            files: where tiles come from.
            limit_bytes: how much to take at most; by default 70 % of the free memory.
            processes: how many processes on this machine make such a cache: they divide the free memory.
            free_bytes: measures free memory.

        Raises:
            UsageError: a number is out of range.
        """
        if processes < 1 or (limit_bytes is not None and limit_bytes < 0):
            raise UsageError(f"processes={processes!r} must be at least 1, and limit_bytes={limit_bytes!r} at least 0.")
        allowed = int(max(free_bytes() - _SPARE_BYTES, 0) * _SHARE) // processes
        limit = allowed if limit_bytes is None else min(limit_bytes, allowed)
        room = tile_bytes(files.records, files.size_hw)
        ends = np.cumsum(room)
        images, stored = len(room), int(np.searchsorted(ends, limit, side="right"))
        _log.log(
            logging.INFO if stored == images else logging.WARNING,
            "RAM cache: %d images need about %s, and %s may be used. It holds up to %d of them.",
            images, _format_bytes(int(room.sum())), _format_bytes(limit), stored,
        )  # fmt: skip
        size = int(room[:stored].sum())
        try:
            # Anonymous memory, which the size of /dev/shm does not limit.
            pixels = np.frombuffer(mmap.mmap(-1, max(size, 1)), np.uint8)
        except OSError as error:  # where the system does not overcommit
            _log.warning("No RAM cache: %s can't be reserved (%s).", _format_bytes(size), error.strerror)
            return cls(files)
        shape = np.frombuffer(mmap.mmap(-1, max(images, 1) * 16), np.int32)[: images * 4].reshape(images, 4)
        start = ends - room
        room[stored:] = 0
        return cls(files, pixels, start, shape, room, free_bytes=free_bytes)

    @classmethod
    def on_disk(
        cls, files: FileTiles, *, folder: PathText | None = None, threads: int = 1, spare_bytes: int = 1 << 30
    ) -> "TileCache":
        """Return a cache of tiles in a file that survives restarts; see `map_tiles`."""
        return cls(files, *map_tiles(files, folder=folder, threads=threads, spare_bytes=spare_bytes))

    def __len__(self) -> int:
        return int((self._shape[:, 0] > 0).sum())

    def tile(self, index: int) -> Tile:
        """Return the tile of one image; see `FileTiles`."""
        height, width, full_h, full_w = self._shape[index].tolist()
        start, room = int(self._start[index]), int(self._room[index])
        if height:
            pixels = self._pixels[start : start + height * width * 3].reshape(height, width, 3)
            return Tile(pixels, (full_h, full_w))
        if not room or self._full[0]:
            return self.recent.tile(index)
        tile = self.files.tile(index)
        size = tile.pixels.nbytes
        # A file may be larger than its annotations say.
        if size <= room and self._has_memory(size):
            self._pixels[start : start + size] = tile.pixels.reshape(-1)
            height, width = tile.pixels.shape[:2]
            self._shape[index, 1:] = (width, *tile.size_hw)
            self._shape[index, 0] = height
        return tile

    def _has_memory(self, size: int) -> bool:
        """Return whether there is memory for another tile; once there is none, nothing is added any more."""
        self._unchecked += size
        if self._unchecked > _CHECK_BYTES:
            self._unchecked = 0
            if self._free_bytes() < _CHECK_BYTES + _SPARE_BYTES and not self._full[0]:
                self._full[0] = 1
                _log.warning(
                    "The RAM cache is full: it holds %d of %d images, because free memory is short.",
                    len(self), len(self._shape),
                )  # fmt: skip
        return not self._full[0]


def _format_bytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def open_cache(
    kind: CacheKind,
    records: Records,
    size_hw: tuple[int, int],
    *,
    folder: PathText | None = None,
    processes: int = 1,
    limit_bytes: int | None = None,
) -> TileCache:
    """Return the training tiles of a set in a cache of the kind that a user names.

    Args:
        kind: "none" keeps only the last few images, "ram" stores all that fit in memory, "disk" all that fit on disk.
        records: the set.
        size_hw: the input size that tiles are made for.
        folder: of a disk cache; see `map_tiles`.
        processes: how many processes on this machine make a RAM cache.
        limit_bytes: how much a RAM cache may take at most; see `TileCache.in_ram`.

    Raises:
        UsageError: there is no such kind, or a folder is given for a kind other than "disk".
    """
    check_choice("cache", kind, get_args(CacheKind))
    if folder is not None and kind != "disk":
        raise UsageError(f"folder={str(folder)!r} is for a disk cache, not for cache={kind!r}. Leave one of them out.")
    files = FileTiles(records, size_hw)
    if kind == "disk":
        return TileCache.on_disk(files, folder=folder, threads=read_cpu().usable_cores)
    if kind == "ram":
        return TileCache.in_ram(files, limit_bytes=limit_bytes, processes=processes)
    return TileCache(files)
