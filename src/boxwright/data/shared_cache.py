"""`SharedCache`: the RAM cache of several processes."""

import mmap

import numpy as np
from numpy.typing import NDArray

from boxwright.core.memory import read_memory
from boxwright.data.cache_size import SLAB_BYTES, SPARE_BYTES, allowed_bytes, announce, tile_bytes
from boxwright.data.recent import SharedRecent
from boxwright.data.records import Records
from boxwright.data.tile import Tile, TileSource


class SharedCache:
    """Tiles in memory that this process and those forked from it fill and read together, as many as fit.

    Every image has its place from the start, and pages are taken when they are first written, until free memory gets
    short; of images beyond that, the last few are kept (`SharedRecent`). Two that read the same image at once write
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
        self._source, self.recent = source, SharedRecent(source)
        self.limit_bytes = allowed_bytes(limit_bytes, read_memory().usable_bytes, processes)
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
        announce(len(self.records), int(self._room.sum()), self.limit_bytes)

    def __len__(self) -> int:
        return int((self._shape[:, 0] > 0).sum())

    def tile(self, index: int) -> Tile:
        """Return the tile of one image; see `TileSource`."""
        if index >= len(self._start):
            return self.recent.tile(index)
        height, width, full_h, full_w = self._shape[index].tolist()
        start = int(self._start[index])
        if height:
            pixels = self._pixels[start : start + height * width * 3].reshape(height, width, 3)
            return Tile(pixels, (full_h, full_w))
        tile = self.recent.tile(index) if self._full[0] else self._source.tile(index)
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
        if self._unchecked > SLAB_BYTES and not self._full[0]:
            self._unchecked = 0
            self._full[0] = read_memory().usable_bytes < SPARE_BYTES
        return not self._full[0]


def find_recent(tiles: TileSource) -> SharedRecent | None:
    """Return the part of a cache whose places must be dealt out to the processes that use it, if it has one."""
    if isinstance(tiles, SharedCache):
        return tiles.recent
    return tiles if isinstance(tiles, SharedRecent) else None
