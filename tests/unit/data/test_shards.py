"""Sets in shards: written, read in place or from a URL, shuffled so that few shards are needed at a time."""

import hashlib
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from boxwright.cli import main
from boxwright.core.errors import DataError, UsageError, WorkerError
from boxwright.data.batch import Batch
from boxwright.data.cache import open_cache
from boxwright.data.check import check_headers, check_records
from boxwright.data.dataset import DetectionDataset
from boxwright.data.formats import read_records, write_records
from boxwright.data.loader import Loader
from boxwright.data.policy import policy_for
from boxwright.data.records import Records
from boxwright.data.shards import MIXED, read_encoded, shard_of, shard_starts
from boxwright.data.tile import FileTiles
from boxwright.tasks.data import convert_set
from boxwright.tasks.train.remote_data import fetch, pack

PER_SHARD = 2
SHARDS = 11


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shards"


@pytest.fixture(scope="module", params=["webdataset", "parquet"])
def folder(records: Records, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a set of 22 images in eleven shards."""
    place = tmp_path_factory.mktemp("shards") / "set"
    write_records(records, place, request.param, shard_images=PER_SHARD)
    return place


@pytest.fixture(scope="module")
def tars(records: Records, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tars") / "set"
    write_records(records, place, "webdataset", shard_images=PER_SHARD)
    return place


def dataset_of(place: Path) -> DetectionDataset:
    return DetectionDataset(read_records(place), (64, 96), policy=policy_for("yolox_s"), seed=11)


def take(dataset: DetectionDataset, batches: int, **options: Any) -> list[Batch]:
    options = {"batch_size": 4, "infinite": True, "workers": 2} | options
    with Loader(dataset, **options) as loader:
        return [batch for _, batch in zip(range(batches), loader, strict=False)]


def digest(batches: list[Batch]) -> list[str]:
    return [
        hashlib.sha256(b.images.tobytes() + b.targets.tobytes() + b.image_ids.tobytes()).hexdigest() for b in batches
    ]


def kept(cache: Path) -> set[str]:
    return {file.name for file in cache.glob("*.tar")}


def test_a_set_in_shards_reads_back_with_the_same_labels_and_bytes(folder: Path, records: Records) -> None:
    again = read_records(folder)
    for name in ("image_ids", "sizes_hw", "boxes_xyxy", "class_ids", "crowd", "areas", "offsets"):
        assert np.array_equal(getattr(again, name), getattr(records, name)), name
    assert (again.names, again.category_ids) == (records.names, records.category_ids)
    assert [read_encoded(again.path(i)) for i in range(len(again))] == [
        records.path(i).read_bytes() for i in range(len(records))
    ]
    starts = shard_starts(again)
    assert starts is not None
    assert starts.tolist() == list(range(0, 23, PER_SHARD))
    assert shard_starts(records) is None


def test_a_tar_shard_has_an_image_and_a_json_of_the_same_name_for_each_sample(tars: Path, records: Records) -> None:
    with tarfile.open(tars / "images/train/000001.tar") as tar:
        names = tar.getnames()
        assert names == ["000000002.jpg", "000000002.json", "000000003.jpg", "000000003.json"]
        member = tar.extractfile(names[3])
        assert member is not None
        said = json.load(member)
    assert said["file_name"] == records.relative_path(3)
    assert [a["category"] for a in said["annotations"]] == [records.names[c] for c in records.class_ids_of(3)]
    assert said["annotations"][0]["bbox"][:2] == records.boxes(3)[0, :2].tolist()


def test_a_parquet_shard_has_a_row_with_image_and_labels_for_each_sample(records: Records, tmp_path: Path) -> None:
    write_records(records.select([5, 6, 7]), tmp_path / "set", "parquet")
    rows = pq.read_table(tmp_path / "set/images/train/000000.parquet").to_pylist()
    assert [row["path"] for row in rows] == [records.relative_path(i) for i in (5, 6, 7)]
    assert rows[2]["image"] == records.path(7).read_bytes()
    assert np.array_equal(np.array(rows[2]["boxes_xyxy"], np.float32), records.boxes(7))


def test_an_epoch_has_every_image_once_and_few_shards_at_a_time(tars: Path) -> None:
    dataset = dataset_of(tars)
    orders = [dataset.order(epoch) for epoch in (0, 1)]
    assert orders[0].tolist() != orders[1].tolist()
    for order in orders:
        assert sorted(order.tolist()) == list(range(22))
        groups = [
            set((order[at : at + MIXED * PER_SHARD] // PER_SHARD).tolist()) for at in range(0, 22, MIXED * PER_SHARD)
        ]
        assert [len(group) for group in groups] == [4, 4, 3]
    assert any(abs(a - b) > 1 for a, b in zip(orders[0][:-1], orders[0][1:], strict=True))


def test_ranks_share_out_the_shards(tars: Path) -> None:
    ids: list[list[int]] = []
    for rank in (0, 1):
        with Loader(dataset_of(tars), batch_size=3, rank=rank, world_size=2, drop_last=False) as loader:
            ids.append([i for batch in loader for i in batch.image_ids.tolist()])
    place = {int(image_id): n for n, image_id in enumerate(read_records(tars).image_ids)}
    shards = [{place[i] // PER_SHARD for i in own} for own in ids]
    assert sorted(ids[0] + ids[1]) == sorted(place)
    assert len(ids[0]) == len(ids[1]) == 11
    assert all(len(own) <= 2 * MIXED for own in shards)
    assert len(shards[0] & shards[1]) <= MIXED


def test_a_loader_resumes_in_the_middle_of_an_epoch(folder: Path) -> None:
    whole = digest(take(dataset_of(folder), 9))
    assert digest(take(dataset_of(folder), 6, start=(0, 3), workers=0)) == whole[3:]


def test_samples_of_a_url_are_those_of_the_folder_and_shards_come_when_they_are_needed(
    folder: Path, cache: Path
) -> None:
    here = digest(take(dataset_of(folder), 5))
    for file in cache.glob("*"):
        file.unlink()
    mirror = fetch(f"file://{folder}")
    assert not any(file.stat().st_size for file in mirror.glob("images/train/*.*"))
    far = dataset_of(mirror)
    assert digest(take(far, 2, workers=0)) == here[:2]
    assert 0 < len(kept(cache)) <= MIXED
    assert digest(take(far, 5)) == here
    assert kept(cache)
    assert len(kept(cache)) <= SHARDS


def test_shards_are_read_from_a_store_of_objects(tars: Path) -> None:
    fsspec.filesystem("memory").put(str(tars), "/bucket/shards", recursive=True)
    far = dataset_of(fetch("memory://bucket/shards"))
    assert digest(take(far, 2)) == digest(take(dataset_of(tars), 2))


@pytest.mark.parametrize("packed", [False, True])
def test_a_set_cannot_name_the_place_that_its_shards_come_from(tars: Path, tmp_path: Path, packed: bool) -> None:
    place = tmp_path / "set"
    shutil.copytree(tars, place)
    shutil.copytree(tars / "images" / "train", tmp_path / "outside")
    for shard in (place / "images" / "train").glob("*.tar"):
        shard.write_bytes(b"")
    for name in ("images/train/shards.url", "images/train.url", "images.url", "train.url"):
        (place / name).write_text(f"file://{tmp_path}/outside\n")
    if packed:
        pack(place, tmp_path / "set.tar")
        place = fetch(f"file://{tmp_path}/set.tar")
    with pytest.raises(DataError, match="is empty"):
        read_encoded(read_records(place).path(0))


def test_a_shard_that_is_removed_from_the_cache_is_fetched_again(tars: Path, cache: Path) -> None:
    records = read_records(fetch(f"file://{tars}"))
    before = read_encoded(records.path(0))
    (file,) = cache.glob("*.tar")
    file.unlink()
    assert read_encoded(records.path(0)) == before  # of the file that is still open
    from boxwright.data import shards

    shards._open.cache_clear()
    assert read_encoded(records.path(0)) == before
    assert file.exists()


def test_a_store_that_does_not_answer_ends_the_run_and_leaves_no_image_out(
    tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place := tmp_path / "far").mkdir()
    for file in tars.rglob("*.*"):
        (place / file.relative_to(tars)).parent.mkdir(parents=True, exist_ok=True)
        (place / file.relative_to(tars)).write_bytes(file.read_bytes())
    dataset = dataset_of(fetch(f"file://{place}"))
    (place / "images").rename(place / "away")
    monkeypatch.setattr("boxwright.data.shards.time.sleep", lambda _: None)
    with pytest.raises(WorkerError, match=r"can't be fetched"):
        take(dataset, 1)
    assert not dataset.bad_images


def test_a_parquet_file_that_grows_beyond_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pa.array([b"\0" * 3_000_000], pa.binary())
    pq.write_table(pa.table({"key": ["0.jpg"], "image": image}), tmp_path / "0.parquet", compression="zstd")
    assert (tmp_path / "0.parquet").stat().st_size < 10_000
    monkeypatch.setattr("boxwright.data.shards.MOST_GROUP_BYTES", 1 << 21)
    with pytest.raises(DataError, match="GB"):
        read_encoded(tmp_path / "0.parquet" / "0.jpg")


def test_images_of_a_shard_that_is_cut_off_are_left_out_and_named(tars: Path, tmp_path: Path) -> None:
    place = tmp_path / "cut"
    convert_set(tars, place, to="webdataset", shard_images=4)
    shard = place / "images/train/000002.tar"
    shard.write_bytes(shard.read_bytes()[:6000])
    dataset = dataset_of(place)
    with Loader(dataset, batch_size=2) as loader:
        assert sum(len(batch.image_ids) for batch in loader) == 22
    assert set(dataset.bad_images) <= {8, 9, 10, 11}
    assert dataset.bad_images
    report = check_records(dataset.records)
    assert set(report.bad_images()) >= set(dataset.bad_images)


def test_the_quick_check_opens_no_shard(folder: Path, cache: Path) -> None:
    records = read_records(fetch(f"file://{folder}"))
    facts = list(check_headers(records, range(len(records)), 2))
    assert [fact.size_hw for fact in facts] == [records.size_hw(i) for i in range(len(records))]
    assert not kept(cache)


def test_a_disk_cache_holds_images_of_shards(tars: Path, tmp_path: Path) -> None:
    records = read_records(tars)
    tiles = open_cache("disk", records, (64, 96), folder=tmp_path / "tiles")
    for _ in range(2):
        assert np.array_equal(tiles.tile(3).pixels, FileTiles(records, (64, 96)).tile(3).pixels)
    assert len(tiles) == 1


def test_shards_convert_back_to_files(folder: Path, records: Records, tmp_path: Path) -> None:
    assert convert_set(folder, tmp_path / "out", to="yolo") == {"train": 22}
    again = read_records(tmp_path / "out")
    assert [again.path(i).read_bytes() for i in range(22)] == [records.path(i).read_bytes() for i in range(22)]
    assert shard_of(again.path(0)) is None


def test_the_command_writes_both_kinds_of_shards(
    tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, suffix in (("webdataset", "tar"), ("parquet", "parquet")):
        assert main(["data", "convert", str(tars), str(tmp_path / kind), "--to", kind, "--shard-images", "8"]) == 0
        found = sorted(file.name for file in (tmp_path / kind / "images/train").iterdir())
        assert found == [f"{n:06d}.{suffix}" for n in range(3)]
    assert "22 images" in capsys.readouterr().out


def test_options_that_do_not_go_together_are_refused(records: Records, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be linked"):
        write_records(records, tmp_path / "a", "webdataset", images="link")
    with pytest.raises(UsageError, match="shard_images=5"):
        write_records(records, tmp_path / "b", "coco", shard_images=5)


def test_a_file_that_is_no_tar_is_a_bad_image(tmp_path: Path) -> None:
    (tmp_path / "000000.tar").write_bytes(b"x" * 2000)
    with pytest.raises(DataError, match="Cannot read image"):
        read_encoded(tmp_path / "000000.tar" / "000000000.jpg")
