"""`Tile`: an image scaled to fit the network's input, which is what augmentation works on.

`FileTiles` decodes tiles; `RecentTiles` and `TileRing` keep those decoded last, for one process or for several.
"""

import mmap
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boxwright.data.records import Records
from boxwright.data.shards import read_encoded
from boxwright.vision.decode import decode_scaled
from boxwright.vision.letterbox import fit_hw, fit_ratio, resize

_SLOTS_PER_IMAGE = 16


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """An image scaled to fit the network's input.

    Attributes:
        pixels: uint8 (h, w, 3), BGR, not padded; may be read-only.
        size_hw: height and width of the image that it was made from.
    """

    pixels: NDArray[np.uint8]
    size_hw: tuple[int, int]

    def ratio(self, size_hw: tuple[int, int]) -> float:
        """Return the factor from pixels of the original image to pixels of an input of `size_hw`."""
        return fit_ratio(self.size_hw, size_hw)


@dataclass(eq=False)
class FileTiles:
    """Tiles decoded from the image files on every call; safe for threads.

    Attributes:
        records: the set.
        size_hw: the input size that tiles are made for.
    """

    records: Records
    size_hw: tuple[int, int]

    def tile(self, index: int) -> Tile:
        """Return the tile of one image.

        Raises:
            DataError: the image can't be read.
            WorkerError: it is in a shard that can't be fetched.
        """
        path = self.records.path(index)
        image, size_hw = decode_scaled(read_encoded(path), os.fspath(path), self.size_hw)
        return Tile(resize(image, fit_hw(size_hw, self.size_hw)), size_hw)


def tile_bytes(records: Records, size_hw: tuple[int, int]) -> NDArray[np.int64]:
    """Return the bytes of pixels of each tile of a set; an image of unknown size counts as large as it can be.

    Example:
        >>> sizes_hw, none = [(480, 640), (0, 0)], [[], []]
        >>> records = Records.from_lists(
        ...     root="x", paths=["a", "b"], boxes_xyxy=none, class_ids=none, names=[], sizes_hw=sizes_hw
        ... )
        >>> tile_bytes(records, (416, 416)).tolist() == [312 * 416 * 3, 416 * 416 * 3]
        True
    """
    known = np.all(records.sizes_hw > 0, axis=1, keepdims=True)
    sizes = np.where(known, records.sizes_hw, size_hw).astype(np.float64)
    ratios = (np.array(size_hw) / sizes).min(axis=1, keepdims=True)
    found: NDArray[np.int64] = np.maximum((sizes * ratios).astype(np.int64), 1).prod(axis=1) * 3
    return found


class RecentTiles:
    """The tiles used last, up to a number of bytes; safe for threads.

    Mosaics take most of their images from those that came just before (see `AugmentPolicy.partner_window`), so a
    small window saves most of the decoding.

    Args:
        files: where tiles come from.
        limit_bytes: how much pixel data to keep.
    """

    def __init__(self, files: FileTiles, limit_bytes: int = 256 << 20) -> None:
        self._files, self._limit_bytes = files, limit_bytes
        self._kept: OrderedDict[int, Tile] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def tile(self, index: int) -> Tile:
        """Return the tile of one image; see `FileTiles`."""
        with self._lock:
            kept = self._kept.get(index)
            if kept is not None:
                self._kept.move_to_end(index)
                return kept
        tile = self._files.tile(index)  # without the lock: other threads decode at the same time
        with self._lock:
            if index not in self._kept:
                self._kept[index] = tile
                self._bytes += tile.pixels.nbytes
            while self._bytes > self._limit_bytes:
                self._bytes -= self._kept.popitem(last=False)[1].pixels.nbytes
        return tile


class TileRing:
    """The tiles that forks of this process decoded last, shared by all of them.

    A seqlock ring: each worker writes its own slots and reads all. A slot's version is odd while it is written, so a
    reader whose copy was overwritten notices and reads the file (x86 shows writes to other cores in order).

    Args:
        files: where tiles come from.
        limit_bytes: how much pixel data to keep, for all processes together.
    """

    def __init__(self, files: FileTiles, limit_bytes: int = 512 << 20) -> None:
        self._files = files
        images = len(files.records)
        self._slot_bytes = int(tile_bytes(files.records, files.size_hw).max(initial=1))
        # A worker has its share of the slots, and may be the one that reads most images of a small set.
        self._slots = min(limit_bytes // self._slot_bytes, _SLOTS_PER_IMAGE * images)
        # Anonymous memory, whose pages are allocated when they are first written.
        self._pixels = np.frombuffer(mmap.mmap(-1, max(self._slots * self._slot_bytes, 1)), np.uint8)
        # Version, image, height and width of the tile, height and width of the image.
        self._heads = np.frombuffer(mmap.mmap(-1, max(self._slots, 1) * 48), np.int64).reshape(-1, 6)
        self._slot_of = np.frombuffer(mmap.mmap(-1, max(images, 1) * 4), np.int32)  # counts from 1
        self._own = range(0)
        self._turn = 0

    def write_as(self, number: int, processes: int) -> None:
        """Give the calling process its slots, as one of several, numbered from 0."""
        self._own = range(number, self._slots, processes)

    def tile(self, index: int) -> Tile:
        """Return the tile of one image; see `FileTiles`."""
        tile = self._read(index)
        if tile is None:
            tile = self._files.tile(index)
            # A file may be larger than its annotations say.
            if self._own and tile.pixels.nbytes <= self._slot_bytes:
                self._write(self._own[self._turn % len(self._own)], index, tile)
                self._turn += 1
        return tile

    def _read(self, index: int) -> Tile | None:
        slot = int(self._slot_of[index]) - 1
        if slot < 0:
            return None
        version, image, height, width, full_h, full_w = self._heads[slot].tolist()
        if image != index or version % 2:
            return None
        start = slot * self._slot_bytes
        pixels = self._pixels[start : start + height * width * 3].reshape(height, width, 3).copy()
        return Tile(pixels, (full_h, full_w)) if self._heads[slot, 0] == version else None

    def _write(self, slot: int, index: int, tile: Tile) -> None:
        head, start = self._heads[slot], slot * self._slot_bytes
        # The next odd number; also after a writer that was killed and left one.
        head[0] = version = int(head[0]) // 2 * 2 + 3
        head[1:] = (index, *tile.pixels.shape[:2], *tile.size_hw)
        self._pixels[start : start + tile.pixels.nbytes] = tile.pixels.reshape(-1)
        head[0] = version + 1
        self._slot_of[index] = slot + 1
