"""Keeping the images that were decoded last: within one process, or for several together."""

import mmap
import threading
from collections import OrderedDict

import numpy as np

from boxwright.data.cache_size import tile_bytes
from boxwright.data.records import Records
from boxwright.data.tile import Tile, TileSource

_PLACES_PER_IMAGE = 16


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


class SharedRecent:
    """The tiles that processes forked from this one have decoded last: what one has read is there for all.

    Only the processes of one loader at a time use it (`lend`); all others keep the last few for themselves. Each of
    them writes to places of its own and reads all. A place is numbered before and after it is written, so that whoever
    copies a tile from it sees if it was written meanwhile, and then reads the file (x86 shows other cores writes in
    their order).

    Args:
        source: where tiles come from.
        limit_bytes: how much pixel data to keep, for all processes together.
    """

    def __init__(self, source: TileSource, limit_bytes: int = 512 << 20) -> None:
        self.records: Records = source.records
        self.size_hw: tuple[int, int] = source.size_hw
        self._source, self._alone = source, RecentTiles(source)
        images = len(self.records)
        self._room = int(tile_bytes(self.records, self.size_hw).max(initial=1))
        # A process has its share of the places, and may be the one that reads most images of a small set.
        self._places = min(limit_bytes // self._room, _PLACES_PER_IMAGE * images)
        # Anonymous memory, whose pages are taken when they are first written.
        self._pixels = np.frombuffer(mmap.mmap(-1, max(self._places * self._room, 1)), np.uint8)
        self._heads = np.frombuffer(mmap.mmap(-1, max(self._places, 1) * 48), np.int64).reshape(-1, 6)
        self._place_of = np.frombuffer(mmap.mmap(-1, max(images, 1) * 4), np.int32)  # counted from 1
        self._own: range | None = None
        self._turn = 0
        self._lent = False

    def lend(self) -> bool:
        """Say that processes are going to be forked which use it; False where others still do."""
        if self._lent:
            return False
        self._lent = True
        return True

    def give_back(self) -> None:
        """Say that those processes have ended."""
        self._lent = False

    def write_as(self, number: int, processes: int) -> None:
        """Make the calling process one of those that it was lent to."""
        self._own = range(number, self._places, processes)

    def tile(self, index: int) -> Tile:
        """Return the tile of one image; see `TileSource`."""
        if self._own is None:
            return self._alone.tile(index)
        kept = self._read(index)
        if kept is None:
            kept = self._source.tile(index)
            # A file may be larger than its annotations say.
            if self._own and kept.pixels.nbytes <= self._room:
                self._write(self._own[self._turn % len(self._own)], index, kept)
                self._turn += 1
        return kept

    def _read(self, index: int) -> Tile | None:
        place = int(self._place_of[index]) - 1
        if place < 0:
            return None
        version, image, height, width, full_h, full_w = self._heads[place].tolist()
        if image != index or version % 2:
            return None
        start = place * self._room
        pixels = self._pixels[start : start + height * width * 3].reshape(height, width, 3).copy()
        if self._heads[place, 0] != version:
            return None
        return Tile(pixels, (full_h, full_w))

    def _write(self, place: int, index: int, tile: Tile) -> None:
        head, start = self._heads[place], place * self._room
        # Odd while it is being written; also after one that was killed over it.
        head[0] = version = int(head[0]) // 2 * 2 + 3
        head[1:] = (index, *tile.pixels.shape[:2], *tile.size_hw)
        self._pixels[start : start + tile.pixels.nbytes] = tile.pixels.reshape(-1)
        head[0] = version + 1
        self._place_of[index] = place + 1
