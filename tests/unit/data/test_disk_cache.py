import fcntl
import logging
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import pytest

from boxwright.core.errors import DataError
from boxwright.data.cache import TileCache, open_cache
from boxwright.data.disk_cache import map_tiles
from boxwright.data.records import Records
from boxwright.data.synthetic import draw_scene, generate_scenes
from boxwright.data.tile import FileTiles

SIZE = (64, 64)
TILE_BYTES = 64 * 64 * 3


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return generate_scenes(tmp_path / "set", images=8, seed=5, size_hw=(96, 96))


def opened(records: Records, folder: Path | None, **options: int) -> TileCache:
    return TileCache.on_disk(FileTiles(records, SIZE), folder=folder, **options)


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
    (file,) = folder.glob("*.bin")
    return file


def files_but_lock(folder: Path) -> list[str]:
    return sorted(f.suffix for f in folder.iterdir() if f.suffix != ".lock")


def test_it_gives_the_same_tiles_as_the_files(records: Records, tmp_path: Path) -> None:
    cache = opened(records, tmp_path / "cache", threads=3)
    assert len(cache) == 8
    assert_same_tiles(cache, records)
    assert not cache.tile(0).pixels.flags.writeable


def test_it_survives_a_restart_without_decoding_anything(records: Records, tmp_path: Path) -> None:
    opened(records, tmp_path / "cache")
    expected = FileTiles(records, SIZE).tile(2)
    before = data_file(tmp_path / "cache").stat()
    # Files of the same size and time that are no images any more: only the cache can give their pixels.
    for i in range(len(records)):
        stat = records.path(i).stat()
        records.path(i).write_bytes(b"x" * stat.st_size)
        os.utime(records.path(i), ns=(stat.st_atime_ns, stat.st_mtime_ns))
    again = opened(records, tmp_path / "cache")
    assert np.array_equal(again.tile(2).pixels, expected.pixels)
    after = data_file(tmp_path / "cache").stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)


def test_a_changed_image_is_noticed(records: Records, tmp_path: Path) -> None:
    old = opened(records, tmp_path / "cache").tile(3).pixels.copy()
    repaint(records, 3)
    cache = opened(records, tmp_path / "cache")
    assert not np.array_equal(cache.tile(3).pixels, old)
    assert_same_tiles(cache, records)
    assert data_file(tmp_path / "cache").stat().st_size == 8 * TILE_BYTES + cache.tile(3).pixels.nbytes


def test_new_images_are_added_and_old_ones_stay(records: Records, tmp_path: Path) -> None:
    some = records.select([0, 5])
    assert len(opened(some, tmp_path / "cache")) == 2
    assert data_file(tmp_path / "cache").stat().st_size == 2 * TILE_BYTES
    cache = opened(records, tmp_path / "cache")
    assert_same_tiles(cache, records)
    assert data_file(tmp_path / "cache").stat().st_size == 8 * TILE_BYTES


def test_a_file_that_is_mostly_leftovers_is_made_again(records: Records, tmp_path: Path) -> None:
    reader = opened(records, tmp_path / "cache")
    kept = reader.tile(0).pixels.copy()
    for _ in range(2):
        for i in range(8):
            repaint(records, i)
            stat = records.path(i).stat()
            os.utime(records.path(i), ns=(stat.st_atime_ns, stat.st_mtime_ns + 5))
        opened(records, tmp_path / "cache")
    cache = opened(records, tmp_path / "cache")
    assert_same_tiles(cache, records)
    assert data_file(tmp_path / "cache").stat().st_size <= 2 * 8 * TILE_BYTES
    assert np.array_equal(reader.tile(0).pixels, kept)


def test_sizes_and_sets_do_not_get_mixed_up(records: Records, tmp_path: Path) -> None:
    other = generate_scenes(tmp_path / "other", images=8, seed=6, size_hw=(96, 96))
    for _ in range(2):
        assert_same_tiles(opened(records, tmp_path / "cache"), records)
        assert_same_tiles(opened(other, tmp_path / "cache"), other)
    small = TileCache.on_disk(FileTiles(records, (32, 32)), folder=tmp_path / "cache")
    assert small.tile(0).pixels.shape == (32, 32, 3)


def test_what_a_crash_left_behind_the_last_tile_is_overwritten(records: Records, tmp_path: Path) -> None:
    opened(records.select([0, 1]), tmp_path / "cache")
    with open(data_file(tmp_path / "cache"), "ab") as file:
        file.write(b"half a tile")
    assert_same_tiles(opened(records, tmp_path / "cache"), records)
    assert data_file(tmp_path / "cache").stat().st_size == 8 * TILE_BYTES


@pytest.mark.parametrize("damage", ["short data", "no data", "broken index", "empty index"])
def test_a_damaged_cache_is_made_again(
    records: Records, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    opened(records, folder)
    (index,) = folder.glob("*.npz")
    if damage == "short data":
        os.truncate(data_file(folder), 100)
    elif damage == "no data":
        data_file(folder).unlink()
    else:
        index.write_bytes(b"PK\3\4 broken" if damage == "broken index" else b"")
    assert_same_tiles(opened(records, folder), records)
    assert damage == "no data" or "can't be used and is made again" in caplog.text


class Listener(logging.Handler):
    """Sets an event when a log line has these words."""

    def __init__(self, words: str, heard: threading.Event) -> None:
        super().__init__()
        self.words, self.heard = words, heard

    def emit(self, record: logging.LogRecord) -> None:
        if self.words in record.getMessage():
            self.heard.set()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size`, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_no_torn_file(records: Records, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "cache"
    opened(records.select([0, 1]), folder)
    with largest_file(3 * TILE_BYTES + 500):
        cache = opened(records, folder)
    assert "File too large. It holds 2 images" in caplog.text
    assert len(cache) == 2
    assert_same_tiles(cache, records)
    assert data_file(folder).stat().st_size == 2 * TILE_BYTES
    assert files_but_lock(folder) == [".bin", ".npz"]
    assert len(opened(records, folder)) == 8


def test_a_disk_too_full_for_the_index_keeps_the_old_one(
    records: Records, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    small = TileCache.on_disk(FileTiles(records.select([0]), (32, 32)), folder=folder)
    (index,) = folder.glob("*.npz")
    with largest_file(index.stat().st_size - 1):
        cache = TileCache.on_disk(FileTiles(records.select([0, 1]), (32, 32)), folder=folder)
    assert "is not complete" in caplog.text
    assert len(small) == len(cache) == 1
    assert files_but_lock(folder) == [".bin", ".npz"]


def test_some_of_the_disk_is_left_free(records: Records, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    free = shutil.disk_usage(tmp_path).free
    cache = opened(records, tmp_path / "cache", spare_bytes=2 * free)
    assert len(cache) == 0
    assert "GB of the disk are free" in caplog.text
    assert_same_tiles(cache, records)


def test_a_folder_that_can_not_be_made_is_named(
    records: Records, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    cache = opened(records, tmp_path / "file" / "cache")
    assert f"No disk cache in {str(tmp_path / 'file' / 'cache')!r}" in caplog.text
    assert "Name another folder" in caplog.text
    assert_same_tiles(cache, records)


def test_without_a_folder_it_lies_in_the_users_cache(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BOXWRIGHT_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert_same_tiles(opened(records, None), records)
    assert data_file(tmp_path / "home" / ".cache" / "boxwright" / "tiles").exists()
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "moved"))
    assert_same_tiles(open_cache("disk", records, SIZE), records)
    assert data_file(tmp_path / "moved" / "tiles").exists()


def test_an_image_that_can_not_be_read_is_left_out(records: Records, tmp_path: Path) -> None:
    records.path(4).write_bytes(b"")
    records.path(5).unlink()
    cache = opened(records, tmp_path / "cache")
    assert len(cache) == 6
    with pytest.raises(DataError, match="000004"):
        cache.tile(4)
    with pytest.raises(DataError, match="000005"):
        cache.tile(5)


def test_the_second_process_waits_for_the_first(records: Records, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    opened(records.select([0]), folder)
    (lock_file,) = folder.glob("*.lock")
    waiting = threading.Event()
    handler = Listener("waiting for another process", waiting)
    logger = logging.getLogger("boxwright.data.disk_cache")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    done: list[int] = []
    other = threading.Thread(target=lambda: done.append(len(opened(records, folder))))
    try:
        with open(lock_file, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            other.start()
            assert waiting.wait(timeout=60)
            assert not done
        other.join(timeout=60)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert done == [8]


def test_two_processes_share_one_cache(records: Records, tmp_path: Path) -> None:
    program = (
        "import sys; from boxwright.data.formats import read_records; from boxwright.data.tile import FileTiles; "
        "from boxwright.data.cache import TileCache; "
        "print(len(TileCache.on_disk(FileTiles(read_records(sys.argv[1]), (64, 64)), folder=sys.argv[2])))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "set"), str(tmp_path / "cache")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=120)[0].strip() for process in both] == ["8", "8"]
    assert data_file(tmp_path / "cache").stat().st_size == 8 * TILE_BYTES


def test_tiles_that_were_not_used_for_long_make_room_for_new_ones(
    records: Records, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def open_tiles(size: int, spare_bytes: int = 0) -> None:
        map_tiles(FileTiles(records, (size, size)), folder=tmp_path, threads=1, spare_bytes=spare_bytes)

    for size in (32, 64):
        open_tiles(size)
    (old,) = tmp_path.glob("tiles-32x32-*.npz")
    os.utime(old, (0, 0))
    open_tiles(96, spare_bytes=1 << 60)  # more than any disk has
    assert list(tmp_path.glob("tiles-32x32-*.npz")) == list(tmp_path.glob("tiles-32x32-*.bin")) == []
    assert len(list(tmp_path.glob("tiles-64x64-*.npz"))) == 1  # in use today
