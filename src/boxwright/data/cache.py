"""Keeping decoded images: as many as memory allows (`RamCache`), and the choice between this and the other caches.

A cache never changes a sample: it gives the same pixels as the files, only sooner. The others are in `recent`,
`shared_cache` and `disk_cache`.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError, UsageError, suggest
from boxwright.core.log import get_logger
from boxwright.core.memory import read_memory
from boxwright.data.cache_size import SLAB_BYTES, SPARE_BYTES, allowed_bytes, announce, expected_bytes, format_gb
from boxwright.data.disk_cache import DiskCache
from boxwright.data.recent import RecentTiles, SharedRecent
from boxwright.data.records import PathText, Records
from boxwright.data.shared_cache import SharedCache
from boxwright.data.tile import FileTiles, Tile, TileSource

_log = get_logger(__name__)

CacheKind: TypeAlias = Literal["none", "ram", "disk"]


class RamCache:
    """Tiles kept in memory from their first use on, as many as fit.

    Free memory is measured when the cache is made and again before each 16 MB that it takes, inside the limits of
    control groups. When there is no more, what is kept stays and the other images are read each time; a line in the
    log says so. Pixels are packed into large blocks, so there are neither a million objects nor a million mappings.

    Args:
        source: where tiles come from the first time.
        limit_bytes: how much to take at most; by default 70 % of what is free.
        processes: how many processes on this machine make such a cache: they share the free memory.
        free_bytes: what measures free memory; another one is for tests.

    Raises:
        UsageError: a number is out of range.
    """

    def __init__(
        self,
        source: TileSource,
        *,
        limit_bytes: int | None = None,
        processes: int = 1,
        free_bytes: Callable[[], int] = lambda: read_memory().usable_bytes,
    ) -> None:
        self.records: Records = source.records
        self.size_hw: tuple[int, int] = source.size_hw
        self._source = source
        self._free_bytes = free_bytes
        self.limit_bytes = allowed_bytes(limit_bytes, free_bytes(), processes)
        self.expected_bytes = expected_bytes(self.records, self.size_hw)
        images = len(self.records)
        self._slabs: list[NDArray[np.uint8]] = []
        self._used = 0  # of the last slab
        self._slab_bytes = min(SLAB_BYTES, max(self.limit_bytes, 1), self.expected_bytes)
        self._slab_of = np.full(images, -1, np.int32)
        self._start = np.zeros(images, np.int64)
        self._shape = np.zeros((images, 4), np.int32)
        self._lock = threading.Lock()
        self._full = not announce(images, self.expected_bytes, self.limit_bytes)

    def __len__(self) -> int:
        return int((self._slab_of >= 0).sum())

    @property
    def used_bytes(self) -> int:
        """How much memory the cache has taken."""
        return sum(slab.nbytes for slab in self._slabs)

    def tile(self, index: int) -> Tile:
        """Return the tile of one image; see `TileSource`."""
        slab = int(self._slab_of[index])
        if slab < 0:
            tile = self._source.tile(index)
            if not self._full:
                self._keep(index, tile)
            return tile
        height, width, full_h, full_w = self._shape[index].tolist()
        start = int(self._start[index])
        pixels = self._slabs[slab][start : start + height * width * 3].reshape(height, width, 3)
        return Tile(pixels, (full_h, full_w))

    def fill(self, threads: int = 1) -> int:
        """Read every image that fits now instead of when it is first wanted, and return how many are kept.

        Images that can't be read are passed over: whoever asks for one gets the error.
        """

        def read(index: int) -> None:
            if not self._full:
                try:
                    self.tile(index)
                except DataError:
                    return

        with ThreadPoolExecutor(threads, "boxwright-cache") as pool:
            for _ in pool.map(read, range(len(self.records))):
                pass
        return len(self)

    def _keep(self, index: int, tile: Tile) -> None:
        need = tile.pixels.nbytes
        with self._lock:
            if self._full or self._slab_of[index] >= 0:
                return
            if not self._slabs or self._used + need > self._slabs[-1].nbytes:
                size = max(self._slab_bytes, need)
                if self.used_bytes + size > self.limit_bytes or self._free_bytes() < size + SPARE_BYTES:
                    self._full = True
                    _log.warning(
                        "The RAM cache is full: it holds %d of %d images in %s. The others are read each time.",
                        len(self), len(self.records), format_gb(self.used_bytes),
                    )  # fmt: skip
                    return
                self._slabs.append(np.empty(size, np.uint8))
                self._used = 0
            start = self._used
            self._slabs[-1][start : start + need] = tile.pixels.reshape(-1)
            self._used += need
            self._start[index] = start
            self._shape[index] = (*tile.pixels.shape[:2], *tile.size_hw)
            # Last: readers look at this first, and don't take the lock.
            self._slab_of[index] = len(self._slabs) - 1


def open_cache(
    kind: CacheKind,
    records: Records,
    size_hw: tuple[int, int],
    *,
    folder: PathText | None = None,
    threads: int = 1,
    processes: int = 1,
    shared: bool = False,
    limit_bytes: int | None = None,
) -> TileSource:
    """Return the training tiles of a set from a cache of the kind that a user names.

    Args:
        kind: "none" keeps only the last few images, "ram" all that fit in memory, "disk" all that fit on the disk.
        records: the set.
        size_hw: the input size that tiles are made for.
        folder: where a disk cache lies; see `DiskCache`.
        threads: how many images to decode at once while a disk cache is made.
        processes: how many processes on this machine make a RAM cache.
        shared: for processes forked from this one (`Loader`'s `worker_kind`): what one has read is there for all.
        limit_bytes: how much a RAM cache may take at most; by default 70 % of what is free.

    Raises:
        UsageError: there is no such kind, or a folder is given for another kind than "disk".
    """
    kinds = get_args(CacheKind)
    if kind not in kinds:
        raise UsageError(f"Unknown cache {kind!r}.{suggest(kind, kinds)} Choose from: {', '.join(kinds)}.")
    if folder is not None and kind != "disk":
        raise UsageError(f"folder={str(folder)!r} is for a disk cache, not for cache={kind!r}. Leave one of them out.")
    files = FileTiles(records, size_hw)
    if kind == "disk":
        return DiskCache(files, folder=folder, threads=threads)
    if kind == "none":
        return SharedRecent(files) if shared else RecentTiles(files)
    if shared:
        return SharedCache(files, limit_bytes=limit_bytes, processes=processes)
    return RamCache(files, limit_bytes=limit_bytes, processes=processes)
