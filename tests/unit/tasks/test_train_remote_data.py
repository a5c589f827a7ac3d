"""Data that come from elsewhere: fetched once, whole, and nothing outside their folder."""

import io
import os
import tarfile
import threading
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec
import pytest

from boxwright.core.errors import DataError, MissingDependencyError
from boxwright.tasks.train.remote_data import fetch, pack, unpack, unpack_once


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Something like a data set."""
    place = tmp_path / "set"
    for name in ("images/train/a.jpg", "images/train/b.jpg", "labels/train/a.txt"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)
    return place


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


ALL = ["images/train/a.jpg", "images/train/b.jpg", "labels/train/a.txt"]


def test_a_folder_is_fetched_once_and_again_when_it_has_changed(folder: Path, cache: Path):
    url = f"file://{folder}"
    first = fetch(url)
    assert names(first) == ALL
    assert first.is_relative_to(cache)
    stamp = (first / ALL[0]).stat().st_mtime_ns
    assert fetch(url) == first
    assert (first / ALL[0]).stat().st_mtime_ns == stamp

    (folder / "images" / "train" / "c.jpg").write_text("new")
    second = fetch(url)
    assert second != first
    assert names(second) == sorted([*ALL, "images/train/c.jpg"])


def test_a_folder_in_a_store_of_objects(folder: Path):
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/bucket/set", recursive=True)
    assert names(fetch("memory://bucket/set")) == ALL
    assert (fetch("memory://bucket/set") / ALL[2]).read_text() == ALL[2]


@pytest.mark.parametrize("name", ["set.tar", "set.tar.gz", "set.tgz", "set.zip"])
@pytest.mark.parametrize("inner", ["", "my_set/"])
def test_archives_are_unpacked_also_where_one_folder_holds_all(folder: Path, tmp_path: Path, name: str, inner: str):
    archive = tmp_path / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(archive, "w") as zipped:
            for one in ALL:
                zipped.write(folder / one, inner + one)
    else:
        with tarfile.open(archive, "w:gz" if name.endswith("gz") else "w") as tar:
            for one in ALL:
                tar.add(folder / one, inner + one)
    assert names(fetch(f"file://{archive}")) == ALL


def test_several_processes_fetch_once(folder: Path, monkeypatch: pytest.MonkeyPatch):
    fetched: list[Any] = []
    system = type(fsspec.filesystem("file"))
    get = system.get

    def count(self: Any, *args: Any) -> None:
        fetched.append(args)
        get(self, *args)

    monkeypatch.setattr(system, "get", count)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(f"file://{folder}"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1
    assert len(found) == 4
    assert len(set(found)) == 1


def test_what_a_killed_process_left_half_done_is_not_used(folder: Path, cache: Path):
    done = fetch(f"file://{folder}")
    half = cache / f"{done.name}.xyz.part"
    done.rename(half)
    assert names(fetch(f"file://{folder}")) == ALL
    assert not half.exists()


def test_what_can_not_be_fetched_is_told(folder: Path, tmp_path: Path, cache: Path):
    with pytest.raises(DataError, match=r"nothing at 'file:///nowhere/set'"):
        fetch("file:///nowhere/set")
    with pytest.raises(DataError, match="neither a folder nor one of"):
        fetch(f"file://{folder}/{ALL[0]}")
    with pytest.raises(DataError, match=r"can't be opened: .*Check how it begins"):
        fetch("nonsense://bucket/set")
    (tmp_path / "broken.tar").write_bytes(b"this is no archive" * 100)
    with pytest.raises(DataError, match=r"broken.tar' can't be unpacked"):
        fetch(f"file://{tmp_path}/broken.tar")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="is empty"):
        fetch(f"file://{tmp_path}/empty")
    assert [path for path in cache.iterdir() if path.is_dir()] == []


@pytest.mark.skipif(find_spec("s3fs") is not None, reason="s3fs is installed")
def test_a_missing_back_end_is_named():
    with pytest.raises(MissingDependencyError, match=r"s3://bucket/set.*pip install s3fs"):
        fetch("s3://bucket/set")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("../evil", tarfile.REGTYPE), ("/tmp/evil", tarfile.REGTYPE), ("link", tarfile.SYMTYPE), ("dev", tarfile.CHRTYPE),
     ("hard", tarfile.LNKTYPE), ("a/../../evil", tarfile.REGTYPE)],
)  # fmt: skip
def test_hostile_members_of_a_tar_file_are_refused(tmp_path: Path, name: str, kind: bytes):
    archive = tmp_path / "bad.tar"
    with tarfile.open(archive, "w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member, io.BytesIO())
    with pytest.raises(DataError, match=r"outside its folder|a link or a device"):
        unpack(archive, tmp_path / "a" / "b")
    assert names(tmp_path) == ["bad.tar"]


def test_hostile_members_of_a_zip_file_are_refused(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as zipped:
        zipped.writestr("../evil", "x")
    with pytest.raises(DataError, match="outside its folder"):
        unpack(tmp_path / "bad.zip", tmp_path / "a" / "b")
    assert names(tmp_path) == ["bad.zip"]


def test_an_archive_that_grows_beyond_measure_is_refused(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w") as zipped:
        zipped.writestr("a.jpg", b"small")
        zipped.infolist()[0].file_size = 1 << 40  # what the directory says
    with tarfile.open(tmp_path / "bomb.tgz", "w:gz") as tar:
        member = tarfile.TarInfo("a.jpg")
        member.size = 1 << 40  # the header alone says it
        tar.addfile(member)
    for name in ("bomb.zip", "bomb.tgz"):
        with pytest.raises(DataError, match=r"is not unpacked: it holds more than 1\.1 GB"):
            unpack(tmp_path / name, tmp_path / "out")
    assert names(tmp_path / "out") == []


def test_a_tar_file_with_an_endless_name_is_refused(tmp_path: Path):
    with tarfile.open(tmp_path / "name.tgz", "w:gz", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("a" * (2 << 20)))
    with pytest.raises(DataError, match="a name or header of"):
        unpack(tmp_path / "name.tgz", tmp_path / "out")


def test_a_fifo_is_left_out_when_a_folder_is_fetched_or_packed(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    os.mkfifo(folder / "images/train/c.jpg")
    assert names(fetch(f"file://{folder}")) == ALL
    pack(folder, tmp_path / "packed.tar")
    unpack(tmp_path / "packed.tar", tmp_path / "out")
    assert names(tmp_path / "out") == ALL
    assert caplog.text.count("it is a FIFO") == 2


def test_packing_follows_links_and_leaves_out_what_is_not_data(folder: Path, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere.jpg"
    elsewhere.write_text("linked")
    (folder / "images" / "train" / "c.jpg").symlink_to(elsewhere)
    (folder / "loop").symlink_to(folder)
    (folder / "runs").mkdir()
    (folder / "runs" / "x").write_text("a run")
    os.utime(folder / ALL[0], (1e9, 1e9))

    size = pack(folder, tmp_path / "a.tar", leave_out=[folder / "runs"])
    unpack(tmp_path / "a.tar", tmp_path / "out")

    assert size == (tmp_path / "a.tar").stat().st_size
    assert names(tmp_path / "out") == sorted([*ALL, "images/train/c.jpg"])
    assert (tmp_path / "out" / "images" / "train" / "c.jpg").read_text() == "linked"
    assert (tmp_path / "out" / ALL[0]).stat().st_mtime == 1e9


def test_an_empty_folder_is_not_packed(tmp_path: Path):
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="no files to ship"):
        pack(tmp_path / "none", tmp_path / "a.tar")


def test_an_archive_is_unpacked_once(folder: Path, tmp_path: Path):
    archive = tmp_path / "a.tar"
    pack(folder, archive)
    first = unpack_once(archive)
    assert unpack_once(archive) == first
    assert names(first) == ALL
    assert archive.stat().st_size == 0
