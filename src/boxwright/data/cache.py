"""`TileCache`: tiles that are kept in RAM, on disk or both from their first use on, and `open_cache`, which makes it.

A cache never changes a sample: it returns the same pixels as the files, only sooner.
"""

import hashlib
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import cv2
import numpy as np

from boxwright.core.environment import cache_folder
from boxwright.core.errors import DataError, UsageError, check_choice
from boxwright.core.log import get_logger
from boxwright.core.memory import read_memory
from boxwright.data.records import PathText, Records
from boxwright.data.shards import stat_image
from boxwright.data.tile import FileTiles, RecentTiles, Tile, TileRing, tile_bytes
from boxwright.data.tile_store import SUFFIX, Place, TileStore, disk_store, format_bytes, memory_store, tile_room

_log = get_logger(__name__)

CacheKind: TypeAlias = Literal["auto", "none", "ram", "disk"]
StoreKind: TypeAlias = Literal["ram", "disk"]

_SPARE_BYTES = 512 << 20  # of the memory: the model and its gradients need some too
_SHARE = 0.7  # of the rest
_AUTO_SHARE = 0.4  # of the memory that `auto` takes
_MEASURED = 9  # images
_STORES: dict[str, list[StoreKind]] = {"none": [], "ram": ["ram"], "disk": ["disk"]}


def _free_bytes() -> int:
    return read_memory().usable_bytes


class TileCache:
    """Tiles from stores, to which those that are missing are added when they are first used.

    Tiles that no store has room for come from the files, and the last few are kept (`recent`).

    Args:
        files: where tiles come from.
        stores: where they are kept; the first that has room gets a new one.
    """

    def __init__(self, files: FileTiles, stores: Sequence[TileStore] = ()) -> None:
        self.files = files
        self.recent: RecentTiles | TileRing = RecentTiles(files)
        self._stores = list(stores)
        # Of each image the number of its store and the place there, shared with forks; 0 for one not looked for yet.
        # The number is written last, and x86 shows writes to other cores in order.
        rows, columns = len(files.records), 1 + len(Place._fields)
        memory = mmap.mmap(-1, max(rows, 1) * columns * 8)
        self._places = np.frombuffer(memory, np.int64)[: rows * columns].reshape(rows, columns)

    def __len__(self) -> int:
        return sum(map(len, self._stores))

    @property
    def addresses(self) -> dict[str, tuple[str, str]]:
        """Where other processes of this machine find each store; see `join`."""
        return {store.name: store.address for store in self._stores}

    def join(self, addresses: Sequence[dict[str, tuple[str, str]]]) -> None:
        """Use the stores of the first of several processes on this machine, so that all add to the same ones."""
        self._stores = [
            store.join([places[store.name] for places in addresses if store.name in places]) for store in self._stores
        ]

    def tile(self, index: int) -> Tile:
        """Return the tile of one image; see `FileTiles`."""
        number = int(self._places[index, 0])
        if number:
            return self._stores[number - 1].read(Place(*self._places[index, 1:].tolist()))
        key = self._key(index) if self._stores else None
        if key is None:
            return self.recent.tile(index)
        for number, store in enumerate(self._stores, start=1):
            found = store.find(key)
            if found is not None:
                self._remember(index, number, found)
                return store.read(found)
        if all(store.full for store in self._stores):
            return self.recent.tile(index)
        tile = self.files.tile(index)
        for number, store in enumerate(self._stores, start=1):
            found = store.add(key, tile)
            if found is not None:
                self._remember(index, number, found)
                break
        return tile

    def _remember(self, index: int, number: int, place: Place) -> None:
        self._places[index, 1:] = place
        self._places[index, 0] = number

    def _key(self, index: int) -> int | None:
        """Return a hash of an image's path and of its file's size and time; None if the file is missing."""
        path = self.files.records.path(index)
        try:
            found = stat_image(path)
        except (OSError, ValueError):
            return None
        name = f"{self.files.records.relative_path(index)}\0{found.st_size}\0{found.st_mtime_ns}"
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "little") or 1


def open_cache(
    kind: CacheKind,
    records: Records,
    size_hw: tuple[int, int],
    *,
    folder: PathText | None = None,
    stores: Sequence[StoreKind] | None = None,
) -> TileCache:
    """Return the training tiles of a set in a cache of the kind that a user names.

    Nothing is decoded yet: tiles are added when they are first used, by all processes that have the cache open. A store
    that can't be made is left out with a warning.

    Args:
        kind: "none" keeps only the last few images, "ram" stores all that fit into 70 % of the free memory, "disk" all
            that fit into half of the free disk, "auto" measures; see `choose_stores`.
        records: the set.
        size_hw: the input size that tiles are made for.
        folder: of files on disk; by default `~/.cache/boxwright/tiles` (BOXWRIGHT_CACHE moves it).
        stores: what `choose_stores` returned, if another process called it.

    Raises:
        UsageError: the kind is unknown, or it takes no folder.
    """
    check_choice("cache", kind, get_args(CacheKind))
    if folder is not None and kind in ("none", "ram"):
        raise UsageError(f"folder={str(folder)!r} is for a disk cache, not for cache={kind!r}. Leave one of them out.")
    files = FileTiles(records, size_hw)
    if stores is None:
        stores = choose_stores(files, folder=folder) if kind == "auto" else _STORES[kind]
    opened = []
    for store in stores:
        try:
            if store == "disk":
                opened.append(_open_disk(files, folder))
            else:
                opened.append(_open_ram(files, _AUTO_SHARE if kind == "auto" else _SHARE))
        except OSError as error:
            _log.warning("No %s cache: %s. Its images are read from their files each time.", store, error)
    return TileCache(files, opened)


def _open_ram(files: FileTiles, share: float) -> TileStore:
    needed, limit = _needed(files), _ram_room(_free_bytes(), share)
    _log.info(
        "RAM cache: %d images need about %s, and %s may be used.",
        len(files.records), format_bytes(needed), format_bytes(limit),
    )  # fmt: skip
    return memory_store(len(files.records), limit_bytes=limit, may_grow=lambda: _free_bytes() >= _SPARE_BYTES)


def _open_disk(files: FileTiles, folder: PathText | None) -> TileStore:
    # Another version of OpenCV may decode to other pixels.
    what = "\0".join([os.path.abspath(files.records.root), *map(str, files.size_hw), cv2.__version__])
    name = hashlib.sha256(what.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return disk_store(_tile_folder(folder) / f"{name}{SUFFIX}", len(files.records), _needed(files))


def choose_stores(
    files: FileTiles,
    *,
    folder: PathText | None = None,
    free_bytes: Callable[[], int] = _free_bytes,
    measure: Callable[[FileTiles, Path], tuple[float, float]] | None = None,
) -> list[StoreKind]:
    """Return where to keep the tiles of a set: RAM if they fit into 40 % of the free memory, else what measuring says.

    A disk is used if it returns a tile in less than half the time that decoding it takes. RAM then holds what the disk
    has no room for; of the disk's tiles, the system keeps in free memory those that were used last.

    Args:
        files: where tiles come from.
        folder: of files on disk; see `open_cache`.
        free_bytes: measures free memory.
        measure: returns the seconds of decoding a tile and of reading it from the disk; by default `measure_tiles`.
    """
    needed, allowed = _needed(files), _ram_room(free_bytes(), _AUTO_SHARE)
    if needed <= allowed:
        return ["ram"]
    place = _tile_folder(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        decode_s, read_s = (measure or measure_tiles)(files, place)
        room = tile_room(place)[0]
    except OSError as error:
        _log.warning("No disk cache in %r: %s.", str(place), error.strerror)
        return ["ram"]
    stores: list[StoreKind] = ["disk"] if 2 * read_s < decode_s else []
    if not stores or needed > room:
        stores.append("ram")
    _log.info(
        "Cache: %s. %d images need about %s; %s of RAM and %s of the disk may be used. Decoding one takes %.1f ms, "
        "reading it from the disk %.1f ms.",
        " and ".join(stores), len(files.records), format_bytes(needed), format_bytes(allowed), format_bytes(room),
        1e3 * decode_s, 1e3 * read_s,
    )  # fmt: skip
    return stores


def measure_tiles(files: FileTiles, folder: Path) -> tuple[float, float]:
    """Return the seconds of decoding a tile and of reading one from a disk, of the first few images."""
    tiles, decode_s, read_s = [], [0.0], [0.0]
    for index in range(min(len(files.records), _MEASURED)):
        start = time.perf_counter()
        with suppress(DataError):
            tiles.append(files.tile(index).pixels)
            decode_s.append(time.perf_counter() - start)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        places = [(file.tell(), file.write(np.ascontiguousarray(pixels).data)) for pixels in tiles]
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # or memory would be measured
        for start_byte, size in reversed(places):  # or the system would read ahead
            start = time.perf_counter()
            os.pread(file.fileno(), size, start_byte)
            read_s.append(time.perf_counter() - start)
    return float(np.median(decode_s)), float(np.median(read_s))


def _ram_room(free_bytes: int, share: float) -> int:
    return int(max(free_bytes - _SPARE_BYTES, 0) * share)


def _tile_folder(folder: PathText | None) -> Path:
    return cache_folder("tiles") if folder is None else Path(folder)


def _needed(files: FileTiles) -> int:
    return int(tile_bytes(files.records, files.size_hw).sum())
