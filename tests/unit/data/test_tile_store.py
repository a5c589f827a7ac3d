import hashlib
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import cv2
import numpy as np
import pytest

from boxwright.core.errors import DataError
from boxwright.data.cache import TileCache, open_cache
from boxwright.data.records import Records
from boxwright.data.synthetic import draw_scene, generate_scenes
from boxwright.data.tile import FileTiles, Tile
from boxwright.data.tile_store import TileStore, disk_store, tile_room

SIZE = (64, 64)
TILE_BYTES = 64 * 64 * 3


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return generate_scenes(tmp_path / "set", images=8, seed=5, size_hw=(96, 96))


def opened(records: Records, folder: Path | None, size_hw: tuple[int, int] = SIZE) -> TileCache:
    return open_cache("disk", records, size_hw, folder=folder)


def filled(records: Records, folder: Path | None) -> TileCache:
    cache = opened(records, folder)
    for i in range(len(records)):
        with suppress(DataError):
            cache.tile(i)
    return cache


def assert_same_tiles(cache: TileCache, records: Records) -> None:
    files = FileTiles(records, SIZE)
    for i in range(len(records)):
        expected, found = files.tile(i), cache.tile(i)
        assert found.size_hw == expected.size_hw
        assert np.array_equal(found.pixels, expected.pixels)


def repaint(records: Records, index: int) -> None:
    path = records.path(index)
    before = path.stat()
    path.write_bytes(cv2.imencode(".jpg", draw_scene(99, index, (80, 96))[0])[1].tobytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def data_file(folder: Path) -> Path:
    (file,) = folder.glob("*.tiles")
    return file


def stored_bytes(folder: Path) -> int:
    """Return the bytes of pixels, which follow a table of a known size."""
    empty = opened_size(folder.parent / "empty")
    return data_file(folder).stat().st_size - empty


def opened_size(folder: Path) -> int:
    disk_store(folder / "empty.tiles", 1, 0)
    return data_file(folder).stat().st_size


def test_it_gives_the_same_tiles_as_the_files(records: Records, tmp_path: Path) -> None:
    cache = opened(records, tmp_path / "cache")
    assert len(cache) == 0  # nothing is decoded before it is needed
    for _ in range(2):
        assert_same_tiles(cache, records)
    assert len(cache) == 8
    assert not cache.tile(0).pixels.flags.writeable


def test_it_survives_a_restart_without_decoding_anything(records: Records, tmp_path: Path) -> None:
    filled(records, tmp_path / "cache")
    expected = FileTiles(records, SIZE).tile(2)
    # Files of the same size and time that are no images any more: only the cache can give their pixels.
    for i in range(len(records)):
        stat = records.path(i).stat()
        records.path(i).write_bytes(b"x" * stat.st_size)
        os.utime(records.path(i), ns=(stat.st_atime_ns, stat.st_mtime_ns))
    again = opened(records, tmp_path / "cache")
    assert np.array_equal(again.tile(2).pixels, expected.pixels)
    assert stored_bytes(tmp_path / "cache") == 8 * TILE_BYTES


def test_a_changed_image_is_noticed(records: Records, tmp_path: Path) -> None:
    old = filled(records, tmp_path / "cache").tile(3).pixels
    before = old.copy()
    repaint(records, 3)
    cache = opened(records, tmp_path / "cache")
    assert not np.array_equal(cache.tile(3).pixels, before)
    assert_same_tiles(cache, records)
    assert stored_bytes(tmp_path / "cache") == 8 * TILE_BYTES + cache.tile(3).pixels.nbytes
    assert np.array_equal(old, before)  # others may be reading it


def test_parts_of_a_set_share_their_tiles(records: Records, tmp_path: Path) -> None:
    assert len(filled(records.select([0, 5]), tmp_path / "cache")) == 2
    cache = opened(records.select([5, 0, 1]), tmp_path / "cache")
    assert_same_tiles(cache, records.select([5, 0, 1]))
    assert len(cache) == 3
    assert stored_bytes(tmp_path / "cache") == 3 * TILE_BYTES


def test_a_file_that_is_mostly_leftovers_is_made_again(records: Records, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    reader = filled(records, folder)
    kept = reader.tile(0).pixels.copy()
    tile = FileTiles(records, SIZE).tile(0)
    store = disk_store(data_file(folder), 8, 0)
    for key in range(1, 3200):
        store.add(key, Tile(tile.pixels[:1], tile.size_hw))
    cache = opened(records, folder)
    assert len(cache) == 0
    assert_same_tiles(cache, records)
    assert stored_bytes(folder) == 8 * TILE_BYTES
    assert np.array_equal(reader.tile(0).pixels, kept)


def test_a_file_for_a_small_part_makes_way_for_one_of_the_whole_set(records: Records, tmp_path: Path) -> None:
    small = data_file_after(disk_store(tmp_path / "a.tiles", 8, 0), tmp_path)
    assert data_file_after(disk_store(tmp_path / "a.tiles", 10_000, 0), tmp_path) > 2 * small


def data_file_after(store: TileStore, folder: Path) -> int:
    assert len(store) == 0
    return data_file(folder).stat().st_size


def test_sizes_and_sets_do_not_get_mixed_up(records: Records, tmp_path: Path) -> None:
    other = generate_scenes(tmp_path / "other", images=8, seed=6, size_hw=(96, 96))
    for _ in range(2):
        assert_same_tiles(opened(records, tmp_path / "cache"), records)
        assert_same_tiles(opened(other, tmp_path / "cache"), other)
    assert opened(records, tmp_path / "cache", (32, 32)).tile(0).pixels.shape == (32, 32, 3)


def test_what_a_crash_left_behind_the_last_tile_is_never_used(records: Records, tmp_path: Path) -> None:
    filled(records.select([0, 1]), tmp_path / "cache")
    with open(data_file(tmp_path / "cache"), "ab") as file:
        file.write(b"half a tile")
    assert_same_tiles(opened(records, tmp_path / "cache"), records)
    assert_same_tiles(opened(records, tmp_path / "cache"), records)


def test_a_tile_whose_pixels_never_reached_the_disk_is_decoded_again(records: Records, tmp_path: Path) -> None:
    filled(records, tmp_path / "cache")
    size = data_file(tmp_path / "cache").stat().st_size
    with open(data_file(tmp_path / "cache"), "r+b") as file:
        file.seek(size - 3 * TILE_BYTES)
        file.write(bytes(TILE_BYTES + 100))
    for _ in range(2):
        assert_same_tiles(opened(records, tmp_path / "cache"), records)
    assert data_file(tmp_path / "cache").stat().st_size == size + 2 * TILE_BYTES


@pytest.mark.parametrize("size", [0, 10, 5000, -TILE_BYTES - 100])
def test_a_file_that_was_cut_off_is_completed_or_made_again(records: Records, tmp_path: Path, size: int) -> None:
    folder = tmp_path / "cache"
    filled(records, folder)
    os.truncate(data_file(folder), size if size >= 0 else data_file(folder).stat().st_size + size)
    for _ in range(2):
        assert_same_tiles(opened(records, folder), records)
    assert len(opened(records, folder)) == 8


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size`, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_no_half_tile_in_use(
    records: Records, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    cache = filled(records.select([0, 1]), folder)
    with largest_file(data_file(folder).stat().st_size + TILE_BYTES + 500):
        cache = filled(records, folder)
    assert "disk cache is full (No space left on device): it holds 3 images" in caplog.text
    assert_same_tiles(cache, records)
    assert len(cache) == 3
    assert len(filled(records, folder)) == 8


def test_a_disk_too_full_for_a_new_file_means_no_cache(
    records: Records, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with largest_file(1000):
        cache = opened(records, tmp_path / "cache")
    assert "No disk cache: [Errno 27] File too large" in caplog.text
    assert_same_tiles(cache, records)
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".lock"]


def test_some_of_the_disk_is_left_free(records: Records, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = FileTiles(records, SIZE)
    with caplog.at_level(logging.INFO, "boxwright"):
        store = disk_store(tmp_path / "a.tiles", 8, 8 * TILE_BYTES, spare_bytes=1 << 60)
    assert "8 images need about 0.1 MB, and 0.0 MB may be used" in caplog.text
    assert_same_tiles(TileCache(files, [store]), records)
    assert len(store) == 0


def test_a_folder_that_can_not_be_made_is_named(
    records: Records, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    cache = opened(records, tmp_path / "file" / "cache")
    assert f"Not a directory: {str(tmp_path / 'file' / 'cache')!r}" in caplog.text
    assert_same_tiles(cache, records)


def test_without_a_folder_it_lies_in_the_users_cache(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BOXWRIGHT_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert_same_tiles(opened(records, None), records)
    assert data_file(tmp_path / "home" / ".cache" / "boxwright" / "tiles").exists()
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "moved"))
    assert_same_tiles(opened(records, None), records)
    assert data_file(tmp_path / "moved" / "tiles").exists()


def test_an_image_that_can_not_be_read_is_left_out(records: Records, tmp_path: Path) -> None:
    records.path(4).write_bytes(b"")
    records.path(5).unlink()
    cache = filled(records, tmp_path / "cache")
    assert len(cache) == 6
    with pytest.raises(DataError, match="000004"):
        cache.tile(4)
    with pytest.raises(DataError, match="000005"):
        cache.tile(5)


def test_a_tile_that_another_process_adds_is_there_for_this_one(records: Records, tmp_path: Path) -> None:
    mine, theirs = (opened(records, tmp_path / "cache") for _ in range(2))
    for i in range(8):
        (mine, theirs)[i % 2].tile(i)
        assert len(mine) == len(theirs) == i + 1
    assert_same_tiles(mine, records)
    assert_same_tiles(theirs, records)
    assert stored_bytes(tmp_path / "cache") == 8 * TILE_BYTES


FILL = """
import hashlib, sys
from boxwright.data.cache import open_cache
from boxwright.data.formats import read_records
from boxwright.data.threads import map_threads

cache = open_cache("disk", read_records(sys.argv[1]), (64, 64), folder=sys.argv[2])
digest = hashlib.sha256()
for tile in map_threads(cache.tile, 8, 2):
    digest.update(tile.pixels)
print(len(cache), digest.hexdigest())
"""


def test_processes_that_fill_one_cache_at_once_get_the_same_tiles(records: Records, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FILL, str(tmp_path / "set"), str(tmp_path / "cache")]
    all_of_them = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    printed = {process.communicate(timeout=120)[0] for process in all_of_them}
    files = FileTiles(records, SIZE)
    digest = hashlib.sha256(b"".join(files.tile(i).pixels.tobytes() for i in range(8)))
    assert {line.split()[1] for line in printed} == {digest.hexdigest()}
    assert len(opened(records, tmp_path / "cache")) == 8


def test_tiles_used_longest_ago_make_room_for_new_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, name in enumerate(("old", "older", "used")):
        store = disk_store(tmp_path / f"{name}.tiles", 8, 0)
        os.utime(tmp_path / f"{name}.tiles", (100 - number, 100 - number))  # "used" is the oldest, but open
    (tmp_path / "from-an-earlier-version.npz").touch()
    with caplog.at_level(logging.INFO, "boxwright"):
        disk_store(tmp_path / "new.tiles", 8, 0, spare_bytes=1 << 60)  # more than any disk has
    assert sorted(file.name for file in tmp_path.iterdir()) == ["new.tiles", "tiles.lock", "used.tiles"]
    removed = [line for line in caplog.messages if "to make room" in line]
    assert ["older.tiles" in removed[0], "old.tiles" in removed[1]] == [True, True]
    assert len(store) == 0


def test_nothing_is_removed_while_there_is_room(tmp_path: Path) -> None:
    disk_store(tmp_path / "old.tiles", 8, 0)
    disk_store(tmp_path / "new.tiles", 8, 1000)
    assert len(list(tmp_path.glob("*.tiles"))) == 2


def test_all_stores_together_take_half_of_the_disk(tmp_path: Path) -> None:
    may_take, left = tile_room(tmp_path)
    disk_store(tmp_path / "a.tiles", 100_000, 0)
    for now, before in zip(tile_room(tmp_path), (may_take, left), strict=True):
        assert abs(now - before) < 0.02 * before  # others use the disk, too
    assert 0.98 < may_take / left < 1.02 or left == 1 << 30
