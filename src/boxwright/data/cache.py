"""Keeping decoded images: the last few (`RecentTiles`), as many as memory allows (`RamCache`), or see `disk_cache`.

`SharedCache` is the RAM cache of several processes. A cache never changes a sample: it gives the same pixels as the
files, only sooner.
"""

import mmap
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError, UsageError, suggest
from boxwright.core.log import get_logger
from boxwright.core.memory import read_memory
from boxwright.data.disk_cache import DiskCache
from boxwright.data.records import PathText, Records
from boxwright.data.tile import FileTiles, Tile, TileSource

_log = get_logger(__name__)

CacheKind: TypeAlias = Literal["none", "ram", "disk"]

_SLAB_BYTES = 16 << 20
# The model, its gradients and everything else need memory too.
_SHARE = 0.7
_SPARE_BYTES = 512 << 20


class RecentTiles:
    """The tiles asked for last, up to so many bytes; safe for threads.

    Mosaics take most of their images from those that came just before (see `AugmentRecipe.partner_window`), so a
    small window saves most of the decoding.

    Args:
        source: where tiles come from.
        limit_bytes: how much pixel data to keep.
    """

    def __init__(self, source: TileSource, limit_bytes: int = 256 << 20) -> None:
        self.records: Records = source.records
        self.size_hw: tuple[int, int] = source.size_hw
        self.limit_bytes = limit_bytes
        self._source = source
        self._kept: OrderedDict[int, Tile] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def tile(self, index: int) -> Tile:
        """Return the tile of one image; see `TileSource`."""
        with self._lock:
            kept = self._kept.get(index)
            if kept is not None:
                self._kept.move_to_end(index)
                return kept
        tile = self._source.tile(index)  # outside the lock: others decode at the same time
        with self._lock:
            if index not in self._kept:
                self._kept[index] = tile
                self._bytes += tile.pixels.nbytes
            while self._bytes > self.limit_bytes:
                self._bytes -= self._kept.popitem(last=False)[1].pixels.nbytes
        return tile


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
        self.limit_bytes = _allowed(limit_bytes, free_bytes(), processes)
        self.expected_bytes = expected_bytes(self.records, self.size_hw)
        images = len(self.records)
        self._slabs: list[NDArray[np.uint8]] = []
        self._used = 0  # of the last slab
        self._slab_bytes = min(_SLAB_BYTES, max(self.limit_bytes, 1), self.expected_bytes)
        self._slab_of = np.full(images, -1, np.int32)
        self._start = np.zeros(images, np.int64)
        self._shape = np.zeros((images, 4), np.int32)
        self._lock = threading.Lock()
        self._full = not _announce(images, self.expected_bytes, self.limit_bytes)

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
                if self.used_bytes + size > self.limit_bytes or self._free_bytes() < size + _SPARE_BYTES:
                    self._full = True
                    _log.warning(
                        "The RAM cache is full: it holds %d of %d images in %s. The others are read each time.",
                        len(self), len(self.records), _gb(self.used_bytes),
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


class SharedCache:
    """Tiles in memory that this process and those forked from it fill and read together, as many as fit.

    Every image has its place from the start, and pages are taken when they are first written, until free memory gets
    short; of images beyond that, each process keeps the last few for itself. Two that read the same image at once write
    the same bytes, so there is no lock; a tile counts when its shape is there, which is written after its pixels (x86
    shows other cores writes in their order).

    Args:
        source: where tiles come from the first time.
        limit_bytes: how much to take at most; by default 70 % of what is free now.
        processes: how many on this machine make such a cache of their own: they share the free memory.

    Raises:
        UsageError: a number is out of range.
    """

    def __init__(self, source: TileSource, *, limit_bytes: int | None = None, processes: int = 1) -> None:
        self.records: Records = source.records
        self.size_hw: tuple[int, int] = source.size_hw
        self._source, self._recent = source, RecentTiles(source)
        self.limit_bytes = _allowed(limit_bytes, read_memory().usable_bytes, processes)
        self._room = tile_bytes(self.records, self.size_hw)
        ends = np.cumsum(self._room)
        images = int(np.searchsorted(ends, self.limit_bytes, side="right"))
        self._start = (ends - self._room)[:images]
        # Anonymous memory, which the size of /dev/shm does not limit.
        self._pixels = np.frombuffer(mmap.mmap(-1, max(int(ends[images - 1]) if images else 0, 1)), np.uint8)
        shape = np.frombuffer(mmap.mmap(-1, max(images, 1) * 16), np.int32)
        self._shape: NDArray[np.int32] = shape[: images * 4].reshape(images, 4)
        self._full = mmap.mmap(-1, 1)
        self._unchecked = 0
        _announce(len(self.records), int(self._room.sum()), self.limit_bytes)

    def __len__(self) -> int:
        return int((self._shape[:, 0] > 0).sum())

    def tile(self, index: int) -> Tile:
        """Return the tile of one image; see `TileSource`."""
        if index >= len(self._start):
            return self._recent.tile(index)
        height, width, full_h, full_w = self._shape[index].tolist()
        start = int(self._start[index])
        if height:
            pixels = self._pixels[start : start + height * width * 3].reshape(height, width, 3)
            return Tile(pixels, (full_h, full_w))
        tile = self._recent.tile(index) if self._full[0] else self._source.tile(index)
        # A file may be larger than its annotations say.
        if tile.pixels.nbytes <= self._room[index] and self._has_room(tile.pixels.nbytes):
            self._pixels[start : start + tile.pixels.nbytes] = tile.pixels.reshape(-1)
            height, width = tile.pixels.shape[:2]
            self._shape[index, 1:] = (width, *tile.size_hw)
            self._shape[index, 0] = height
        return tile

    def _has_room(self, size: int) -> bool:
        """Look now and then whether memory has become short; then nobody adds any more."""
        self._unchecked += size
        if self._unchecked > _SLAB_BYTES and not self._full[0]:
            self._unchecked = 0
            self._full[0] = read_memory().usable_bytes < _SPARE_BYTES
        return not self._full[0]


def _allowed(limit_bytes: int | None, free_bytes: int, processes: int) -> int:
    """Return how much a cache may take.

    Raises:
        UsageError: a number is out of range.
    """
    if processes < 1 or (limit_bytes is not None and limit_bytes < 0):
        raise UsageError(f"processes={processes!r}, limit_bytes={limit_bytes!r}: neither makes a cache.")
    allowed = int(max(free_bytes - _SPARE_BYTES, 0) * _SHARE) // processes
    return allowed if limit_bytes is None else min(limit_bytes, allowed)


def _announce(images: int, need: int, limit: int) -> bool:
    """Say how much of a set will be kept; return whether any."""
    if need <= limit:
        _log.info("RAM cache: %d images need about %s of %s.", images, _gb(need), _gb(limit))
    elif limit < need // max(images, 1):
        _log.warning(
            "No RAM cache: %d images need about %s, and %s may be used. Every image is read each time.",
            images, _gb(need), _gb(limit),
        )  # fmt: skip
        return False
    else:
        _log.warning(
            "RAM cache: %d images need about %s, and %s may be used. About %d %% of them will be kept.",
            images, _gb(need), _gb(limit), 100 * limit // need,
        )  # fmt: skip
    return True


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
        return RecentTiles(files)
    if shared:
        return SharedCache(files, limit_bytes=limit_bytes, processes=processes)
    return RamCache(files, limit_bytes=limit_bytes, processes=processes)


def expected_bytes(records: Records, size_hw: tuple[int, int]) -> int:
    """Return how much pixel data the tiles of a set have; images of unknown size count as large as they can be.

    Example:
        >>> records = Records.from_lists(
        ...     root="x",
        ...     paths=["a", "b"],
        ...     boxes_xyxy=[[], []],
        ...     class_ids=[[], []],
        ...     names=[],
        ...     sizes_hw=[(480, 640), (0, 0)],
        ... )
        >>> expected_bytes(records, (416, 416)) == (312 * 416 + 416 * 416) * 3
        True
    """
    return int(tile_bytes(records, size_hw).sum())


def tile_bytes(records: Records, size_hw: tuple[int, int]) -> NDArray[np.int64]:
    """Return how much pixel data each tile of a set has; see `expected_bytes`."""
    known = np.all(records.sizes_hw > 0, axis=1, keepdims=True)
    sizes = np.where(known, records.sizes_hw, size_hw).astype(np.float64)
    ratios = (np.array(size_hw) / sizes).min(axis=1, keepdims=True)
    found: NDArray[np.int64] = np.maximum((sizes * ratios).astype(np.int64), 1).prod(axis=1) * 3
    return found


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
