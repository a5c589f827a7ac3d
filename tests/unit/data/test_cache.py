import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boxwright.core.errors import DataError, UsageError
from boxwright.data.cache import CacheKind, TileCache, open_cache
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes
from boxwright.data.threads import map_threads
from boxwright.data.tile import FileTiles, RecentTiles, Tile, tile_bytes

SIZE = (64, 64)
TILE_BYTES = 64 * 64 * 3
PLENTY = 8 << 30


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return generate_scenes(tmp_path_factory.mktemp("scenes"), images=12, seed=5, size_hw=(96, 96))


class CountingTiles(FileTiles):
    """Tiles from files, with a record of which were asked for."""

    def __init__(self, records: Records, bad: int = -1) -> None:
        super().__init__(records, SIZE)
        self.asked: list[int] = []
        self.bad = bad

    def tile(self, index: int) -> Tile:
        self.asked.append(index)
        if index == self.bad:
            raise DataError(f"image {index} is bad")
        return super().tile(index)


def assert_same_tiles(cache: TileCache | RecentTiles, records: Records) -> None:
    files = FileTiles(records, SIZE)
    for i in range(len(records)):
        expected, found = files.tile(i), cache.tile(i)
        assert found.size_hw == expected.size_hw
        assert np.array_equal(found.pixels, expected.pixels)


def fill(cache: TileCache, threads: int = 1) -> int:
    list(map_threads(cache.tile, len(cache.files.records), threads))
    return len(cache)


def test_a_ram_cache_reads_each_image_once_and_changes_nothing(records: Records) -> None:
    source = CountingTiles(records)
    cache = TileCache.in_ram(source, free_bytes=lambda: PLENTY)
    for _ in range(3):
        assert_same_tiles(cache, records)
    assert sorted(source.asked) == list(range(12))
    assert len(cache) == 12


def test_filling_by_several_threads_stores_every_image(records: Records) -> None:
    cache = TileCache.in_ram(CountingTiles(records), free_bytes=lambda: PLENTY)
    assert fill(cache, threads=4) == 12
    assert_same_tiles(cache, records)


@pytest.mark.parametrize("limit", [5 * TILE_BYTES, 6 * TILE_BYTES - 1])
def test_a_limit_stores_as_many_as_fit_and_says_so(
    records: Records, limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    source = CountingTiles(records)
    cache = TileCache.in_ram(source, limit_bytes=limit, free_bytes=lambda: PLENTY)
    assert "up to 5 of" in caplog.text
    assert fill(cache) == 5
    assert_same_tiles(cache, records)
    assert len(source.asked) == 12  # the others are among the most recent


@pytest.mark.parametrize("options", [{"free_bytes": lambda: 400 << 20}, {"limit_bytes": 0}])
def test_too_little_memory_means_no_cache_and_says_so(
    records: Records, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    cache = TileCache.in_ram(CountingTiles(records), **options)
    assert "up to 0 of" in caplog.text
    assert fill(cache) == 0
    assert_same_tiles(cache, records)


def test_memory_that_others_take_later_stops_the_cache(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    free = PLENTY
    cache = TileCache.in_ram(CountingTiles(records), free_bytes=lambda: free)
    free = 100 << 20
    assert fill(cache) == 0
    assert caplog.text.count("RAM cache is full") == 1
    assert_same_tiles(cache, records)


def test_processes_divide_the_free_memory(records: Records) -> None:
    # 70 % of what is beyond the spare 512 MB holds all 12 tiles of one process, but 3 of each of four.
    measured = iter([(512 << 20) + int(12.5 * TILE_BYTES / 0.7), PLENTY] * 2)
    for processes, stored in ((1, 12), (4, 3)):
        assert (
            fill(TileCache.in_ram(CountingTiles(records), free_bytes=measured.__next__, processes=processes)) == stored
        )


def test_a_bad_image_raises_every_time_and_is_not_stored(records: Records) -> None:
    cache = TileCache.in_ram(CountingTiles(records, bad=3), free_bytes=lambda: PLENTY)
    for _ in range(2):
        with pytest.raises(DataError, match="image 3 is bad"):
            cache.tile(3)
    assert len(cache) == 0


def test_a_file_larger_than_its_annotations_say_is_read_each_time(records: Records) -> None:
    flat = replace(records, sizes_hw=np.full_like(records.sizes_hw, (48, 96)))
    source = CountingTiles(flat)
    cache = TileCache.in_ram(source, free_bytes=lambda: PLENTY)
    for _ in range(2):
        assert_same_tiles(cache, flat)
    assert len(cache) == 0
    assert len(source.asked) == 24


def test_the_line_about_memory_names_what_is_needed(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "boxwright"):
        TileCache.in_ram(CountingTiles(records), free_bytes=lambda: PLENTY)
    assert "12 images need about 0.1 MB, and 5.64 GB" in caplog.text


def test_memory_that_can_not_be_reserved_means_no_cache(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    huge = FileTiles(records, (1 << 21, 1 << 21))  # beyond the address space
    assert len(TileCache.in_ram(huge, free_bytes=lambda: 1 << 60)) == 0
    assert "can't be reserved" in caplog.text


def test_an_empty_set_has_an_empty_cache(records: Records) -> None:
    assert len(TileCache.in_ram(FileTiles(records.select([]), SIZE))) == 0


def test_recent_tiles_are_kept_up_to_the_limit(records: Records) -> None:
    source = CountingTiles(records)
    recent = RecentTiles(source, limit_bytes=3 * TILE_BYTES)
    for i in (0, 1, 2, 0, 3, 0, 1):
        recent.tile(i)
    assert source.asked == [0, 1, 2, 3, 1]  # 0 was used again, so 1 was the oldest when 3 came
    assert_same_tiles(recent, records)


def test_recent_tiles_work_even_where_one_is_too_large_to_keep(records: Records) -> None:
    assert_same_tiles(RecentTiles(CountingTiles(records), limit_bytes=10), records)


def test_tile_bytes_are_what_the_tiles_have(tmp_path: Path) -> None:
    mixed = generate_scenes(tmp_path, images=3, seed=0, size_hw=(70, 131))
    files = FileTiles(mixed, (64, 96))
    assert tile_bytes(mixed, (64, 96)).tolist() == [files.tile(i).pixels.nbytes for i in range(3)]


@pytest.mark.parametrize(("kind", "opened", "used"), [("none", 0, 0), ("ram", 0, 12), ("disk", 12, 12)])
def test_each_kind_of_cache_is_opened_by_name(
    records: Records, tmp_path: Path, kind: CacheKind, opened: int, used: int
) -> None:
    cache = open_cache(kind, records, SIZE, folder=tmp_path if kind == "disk" else None)
    assert len(cache) == opened
    assert_same_tiles(cache, records)
    assert len(cache) == used


def test_an_unknown_kind_and_a_useless_folder_are_refused(records: Records) -> None:
    with pytest.raises(UsageError, match="Did you mean 'disk'"):
        open_cache("disc", records, SIZE)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="folder='x'"):
        open_cache("ram", records, SIZE, folder="x")
    with pytest.raises(UsageError, match="processes=0"):
        TileCache.in_ram(CountingTiles(records), processes=0)
    with pytest.raises(UsageError, match="limit_bytes=-1"):
        TileCache.in_ram(CountingTiles(records), limit_bytes=-1)
