import json
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from boxwright.core.errors import DataError, UsageError
from boxwright.data.cache import CacheKind, StoreKind, TileCache, choose_stores, measure_tiles, open_cache
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes
from boxwright.data.threads import map_threads
from boxwright.data.tile import FileTiles, RecentTiles, Tile, tile_bytes
from boxwright.data.tile_store import memory_store

SIZE = (64, 64)
TILE_BYTES = 64 * 64 * 3


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


def in_ram(files: FileTiles, *, limit_bytes: float = inf, may_grow: Callable[[], bool] = lambda: True) -> TileCache:
    return TileCache(files, [memory_store(len(files.records), limit_bytes=limit_bytes, may_grow=may_grow)])


def assert_same_tiles(cache: TileCache | RecentTiles, records: Records) -> None:
    files = FileTiles(records, SIZE)
    for i in range(len(records)):
        expected, found = files.tile(i), cache.tile(i)
        assert found.size_hw == expected.size_hw
        assert np.array_equal(found.pixels, expected.pixels)


def fill(cache: TileCache, threads: int = 1) -> int:
    list(map_threads(cache.tile, len(cache.files.records), threads))
    return len(cache)


def test_a_cache_reads_each_image_once_and_changes_nothing(records: Records) -> None:
    source = CountingTiles(records)
    cache = in_ram(source)
    for _ in range(3):
        assert_same_tiles(cache, records)
    assert sorted(source.asked) == list(range(12))
    assert len(cache) == 12


def test_filling_by_several_threads_stores_every_image(records: Records) -> None:
    cache = in_ram(CountingTiles(records))
    assert fill(cache, threads=4) == 12
    assert_same_tiles(cache, records)


@pytest.mark.parametrize("limit", [5 * TILE_BYTES, 6 * TILE_BYTES - 1])
def test_a_limit_stores_as_many_as_fit_and_says_so(
    records: Records, limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    source = CountingTiles(records)
    cache = in_ram(source, limit_bytes=limit)
    assert fill(cache) == 5
    assert caplog.text.count("it holds 5 images") == 1
    assert_same_tiles(cache, records)
    assert len(source.asked) == 13  # the sixth was decoded to learn its size; the others are among the most recent


def test_memory_that_others_take_later_stops_the_cache(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    free = True
    cache = in_ram(CountingTiles(records), may_grow=lambda: free)
    free = False
    assert fill(cache) == 0
    assert caplog.text.count("RAM cache is full") == 1
    assert_same_tiles(cache, records)


def test_what_one_store_has_no_room_for_goes_to_the_next(records: Records) -> None:
    source = CountingTiles(records)
    limits = (4 * TILE_BYTES, 5 * TILE_BYTES)
    stores = [memory_store(12, limit_bytes=limit, may_grow=lambda: True) for limit in limits]
    cache = TileCache(source, stores)
    for _ in range(2):
        assert_same_tiles(cache, records)
    assert [len(store) for store in stores] == [4, 5]


def test_a_bad_image_raises_every_time_and_is_not_stored(records: Records) -> None:
    cache = in_ram(CountingTiles(records, bad=3))
    for _ in range(2):
        with pytest.raises(DataError, match="image 3 is bad"):
            cache.tile(3)
    assert len(cache) == 0


def test_a_file_larger_than_its_annotations_say_is_stored_as_it_is(records: Records) -> None:
    flat = replace(records, sizes_hw=np.full_like(records.sizes_hw, (48, 96)))
    source = CountingTiles(flat)
    cache = in_ram(source)
    for _ in range(2):
        assert_same_tiles(cache, flat)
    assert len(source.asked) == 12


def test_the_line_about_memory_names_what_is_needed(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "boxwright"):
        open_cache("ram", records, SIZE)
    assert "RAM cache: 12 images need about 0.1 MB, and " in caplog.text


def test_an_empty_set_has_an_empty_cache(records: Records) -> None:
    assert len(open_cache("ram", records.select([]), SIZE)) == 0


OTHER_PROCESS = """
import json, sys
from boxwright.data.cache import open_cache
from boxwright.data.formats import read_records

cache = open_cache("ram", read_records(sys.argv[1]), (64, 64))
cache.join([json.loads(sys.argv[2]), cache.addresses])
cache.tile(3)
print(len(cache))
"""


def test_processes_share_the_ram_of_the_first_of_them(records: Records) -> None:
    source = CountingTiles(records)
    cache = in_ram(source)
    cache.tile(0)
    cache.join([cache.addresses])  # as all processes do, the first one too
    addresses = json.dumps(cache.addresses)
    command = [sys.executable, "-c", OTHER_PROCESS, str(records.root.parent), addresses]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["2"]
    assert_same_tiles(cache, records)
    assert sorted(source.asked) == [0, 1, 2, *range(4, 12)]  # the other one has read the fourth


def test_a_process_on_another_machine_keeps_its_own_memory(records: Records) -> None:
    cache, other = in_ram(CountingTiles(records)), in_ram(CountingTiles(records))
    other.tile(0)
    ((name, (machine, path)),) = other.addresses.items()
    for unreachable in ((f"not {machine}", path), (machine, f"{path}0000")):
        cache.join([{}, {name: unreachable}])
        assert len(cache) == 0
    cache.join([{name: (machine, path)}])
    assert len(cache) == 1


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


@pytest.mark.parametrize(("kind", "stored"), [("none", 0), ("ram", 12), ("disk", 12), ("auto", 12)])
def test_each_kind_of_cache_is_opened_by_name(records: Records, tmp_path: Path, kind: CacheKind, stored: int) -> None:
    cache = open_cache(kind, records, SIZE, folder=tmp_path if kind == "disk" else None)
    assert len(cache) == 0
    assert_same_tiles(cache, records)
    assert len(cache) == stored


@pytest.mark.parametrize(
    ("free_bytes", "read_s", "needs", "chosen"),
    [
        (1 << 40, 9.0, 1, ["ram"]),  # it fits: nothing is measured
        (0, 0.4, 1, ["disk"]),
        (0, 0.6, 1, ["ram"]),  # such a disk saves little
        (0, 0.4, 1 << 20, ["disk", "ram"]),  # more than any disk has
    ],
)
def test_auto_takes_ram_if_the_set_fits_and_else_what_measuring_says(
    records: Records, tmp_path: Path, free_bytes: int, read_s: float, needs: int, chosen: list[StoreKind]
) -> None:
    files = FileTiles(records, (64 * needs, 64 * needs))
    found = choose_stores(
        files, folder=tmp_path, free_bytes=lambda: free_bytes, measure=lambda files, folder: (1.0, read_s)
    )
    assert found == chosen


def test_measuring_leaves_no_file_and_survives_bad_images(records: Records, tmp_path: Path) -> None:
    decode_s, read_s = measure_tiles(CountingTiles(records, bad=2), tmp_path)
    assert decode_s > 0
    assert read_s > 0
    assert list(tmp_path.iterdir()) == []
    assert measure_tiles(CountingTiles(records.select([2]), bad=0), tmp_path) == (0, 0)


def test_auto_without_a_folder_to_write_to_takes_ram(
    records: Records, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    files = FileTiles(records, SIZE)
    assert choose_stores(files, folder=tmp_path / "file" / "cache", free_bytes=lambda: 0) == ["ram"]
    assert f"No disk cache in {str(tmp_path / 'file' / 'cache')!r}" in caplog.text


def test_an_unknown_kind_and_a_useless_folder_are_refused(records: Records) -> None:
    with pytest.raises(UsageError, match="Did you mean 'disk'"):
        open_cache("disc", records, SIZE)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="folder='x'"):
        open_cache("ram", records, SIZE, folder="x")
