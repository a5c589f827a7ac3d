import logging
from pathlib import Path

import numpy as np
import pytest

from boxwright.core.errors import DataError, UsageError
from boxwright.data.cache import RamCache, open_cache
from boxwright.data.cache_size import expected_bytes
from boxwright.data.disk_cache import DiskCache
from boxwright.data.recent import RecentTiles
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes
from boxwright.data.tile import FileTiles, Tile, TileSource

SIZE = (64, 64)
TILE_BYTES = 64 * 64 * 3
PLENTY = 8 << 30


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return generate_scenes(tmp_path_factory.mktemp("scenes"), images=12, seed=5, size_hw=(96, 96))


class CountingTiles:
    """Tiles from files, with a record of which were asked for."""

    def __init__(self, records: Records, bad: int = -1) -> None:
        self.records, self.size_hw = records, SIZE
        self.asked: list[int] = []
        self._files, self._bad = FileTiles(records, SIZE), bad

    def tile(self, index: int) -> Tile:
        self.asked.append(index)
        if index == self._bad:
            raise DataError(f"image {index} is bad")
        return self._files.tile(index)


def assert_same_tiles(cache: TileSource, records: Records) -> None:
    files = FileTiles(records, SIZE)
    for i in range(len(records)):
        expected, found = files.tile(i), cache.tile(i)
        assert found.size_hw == expected.size_hw
        assert np.array_equal(found.pixels, expected.pixels)


def test_a_ram_cache_reads_each_image_once_and_changes_nothing(records: Records) -> None:
    source = CountingTiles(records)
    cache = RamCache(source, free_bytes=lambda: PLENTY)
    for _ in range(3):
        assert_same_tiles(cache, records)
    assert sorted(source.asked) == list(range(12))
    assert len(cache) == 12
    assert cache.used_bytes == cache.expected_bytes == 12 * TILE_BYTES


def test_filling_by_several_threads_keeps_every_image(records: Records) -> None:
    source = CountingTiles(records)
    cache = RamCache(source, free_bytes=lambda: PLENTY)
    assert cache.fill(threads=4) == 12
    assert_same_tiles(cache, records)
    assert len(source.asked) == 12


def test_a_limit_keeps_as_many_as_fit_and_says_so(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    cache = RamCache(CountingTiles(records), limit_bytes=5 * TILE_BYTES, free_bytes=lambda: PLENTY)
    assert "About 41 % of them will be kept" in caplog.text
    assert cache.fill() == 5
    assert "holds 5 of 12 images" in caplog.text
    assert cache.used_bytes <= 5 * TILE_BYTES
    assert_same_tiles(cache, records)


def test_too_little_memory_means_no_cache_and_says_so(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    cache = RamCache(CountingTiles(records), free_bytes=lambda: 400 << 20)
    assert "No RAM cache: 12 images need about" in caplog.text
    assert cache.fill() == 0
    assert cache.used_bytes == 0
    assert_same_tiles(cache, records)


def test_memory_that_others_take_later_stops_the_cache(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    free = PLENTY
    cache = RamCache(CountingTiles(records), free_bytes=lambda: free)
    free = 100 << 20
    assert cache.fill() == 0
    assert "The RAM cache is full" in caplog.text
    assert_same_tiles(cache, records)


def test_processes_share_the_free_memory(records: Records) -> None:
    alone = RamCache(CountingTiles(records), free_bytes=lambda: PLENTY)
    one_of_four = RamCache(CountingTiles(records), free_bytes=lambda: PLENTY, processes=4)
    assert one_of_four.limit_bytes == alone.limit_bytes // 4


def test_a_bad_image_is_passed_over_when_filling_and_raises_when_asked_for(records: Records) -> None:
    cache = RamCache(CountingTiles(records, bad=3), free_bytes=lambda: PLENTY)
    assert cache.fill() == 11
    with pytest.raises(DataError, match="image 3 is bad"):
        cache.tile(3)


def test_the_line_about_memory_names_what_is_needed(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "boxwright"):
        RamCache(CountingTiles(records), free_bytes=lambda: PLENTY)
    assert "RAM cache: 12 images need about 0.1 MB of 5.64 GB." in caplog.text


def test_recent_tiles_are_kept_up_to_the_limit(records: Records) -> None:
    source = CountingTiles(records)
    recent = RecentTiles(source, limit_bytes=3 * TILE_BYTES)
    for i in (0, 1, 2, 0, 3, 0, 1):
        recent.tile(i)
    assert source.asked == [0, 1, 2, 3, 1]  # 0 was used again, so 1 was the oldest when 3 came
    assert_same_tiles(recent, records)


def test_recent_tiles_work_even_where_one_is_too_large_to_keep(records: Records) -> None:
    assert_same_tiles(RecentTiles(CountingTiles(records), limit_bytes=10), records)


def test_expected_bytes_are_what_the_tiles_have(tmp_path: Path) -> None:
    mixed = generate_scenes(tmp_path, images=3, seed=0, size_hw=(70, 131))
    files = FileTiles(mixed, (64, 96))
    assert expected_bytes(mixed, (64, 96)) == sum(files.tile(i).pixels.nbytes for i in range(3))


def test_each_kind_of_cache_is_opened_by_name(records: Records, tmp_path: Path) -> None:
    assert isinstance(open_cache("none", records, SIZE), RecentTiles)
    assert isinstance(open_cache("ram", records, SIZE), RamCache)
    assert isinstance(open_cache("disk", records, SIZE, folder=tmp_path), DiskCache)


def test_an_unknown_kind_and_a_useless_folder_are_refused(records: Records) -> None:
    with pytest.raises(UsageError, match="Did you mean 'disk'"):
        open_cache("disc", records, SIZE)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="folder='x' is for a disk cache"):
        open_cache("ram", records, SIZE, folder="x")
    with pytest.raises(UsageError, match="processes=0"):
        RamCache(CountingTiles(records), processes=0)
