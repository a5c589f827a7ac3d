"""Official weights: stored once they are right, recorded, and checked ever after."""

import hashlib
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from support.fixtures import Command
from support.mirror import Mirror, serve_files
from support.shared import shared_path
from torch import nn

from boxwright.core.environment import cache_folder
from boxwright.core.errors import CheckpointError, DataError, UsageError
from boxwright.detector.sizes import SIZES
from boxwright.detector.yolox import build
from boxwright.tasks.models import find_model
from boxwright.tasks.weights.get import add_weights, get_weights, list_weights, verify_weights
from boxwright.tasks.weights.releases import RELEASES


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture
def nano() -> Path:
    """The official file, byte for byte."""
    return shared_path("weights/yolox_nano/yolox_nano.onnx")


@pytest.fixture
def mirror(nano: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    with serve_files() as mirror:
        mirror.files |= {"/yolox_nano.onnx": nano.read_bytes()}
        monkeypatch.setenv("BOXWRIGHT_WEIGHTS_URL", f"{mirror.address}/")
        yield mirror


def _save(model: str, path: Path, classes: int = 80) -> Path:
    torch.save({"model": build(model, classes).state_dict()}, path)
    return path


@pytest.mark.parametrize("model", SIZES)
def test_the_table_counts_the_weights_of_the_networks(model: str) -> None:
    with torch.device("meta"):
        network = build(model, 80)
    total = sum(value.numel() for value in network.parameters())
    norms = sum(part.num_features for part in network.modules() if isinstance(part, nn.BatchNorm2d))
    assert {one.parameters for one in RELEASES if one.model == model} == {total - norms}


def test_the_official_file_is_fetched_once_and_then_found_by_name(mirror: Mirror, nano: Path, cache: Path) -> None:
    path = get_weights("yolox-nano", format="onnx")
    assert path == cache / "yolox_nano.onnx" == find_model("yolox_nano")
    assert path.read_bytes() == nano.read_bytes()
    assert get_weights("yolox_nano", format="onnx") == path
    assert len(mirror.seen) == 1
    assert sorted(file.name for file in cache.iterdir() if not file.name.startswith(".")) == [
        "weights.json", "yolox_nano.onnx",
    ]  # fmt: skip


def test_a_download_that_was_cut_off_resumes_and_is_checked(mirror: Mirror, nano: Path) -> None:
    mirror.cut_after = [1000] * 5
    with pytest.raises(CheckpointError, match="The same command resumes"):
        get_weights("yolox_nano", format="onnx")
    assert get_weights("yolox_nano", format="onnx").read_bytes() == nano.read_bytes()
    assert mirror.seen[-1][1] == "bytes=5000-"


def test_content_other_than_the_official_is_refused_and_leaves_nothing(mirror: Mirror, nano: Path, cache: Path) -> None:
    spoilt = bytearray(nano.read_bytes())
    spoilt[2_000_000] ^= 1
    mirror.files["/yolox_nano.onnx"] = bytes(spoilt)
    with pytest.raises(CheckpointError, match=r"its SHA-256 is .* the official release has c789161e"):
        get_weights("yolox_nano", format="onnx")
    assert not list(cache.rglob("*.onnx"))


def test_a_page_instead_of_the_file_is_refused_by_its_size(mirror: Mirror) -> None:
    mirror.files["/yolox_nano.onnx"] = b"<html>Please log in</html>"
    with pytest.raises(CheckpointError, match="the file has 3,659,407"):
        get_weights("yolox_nano", format="onnx")


def test_another_network_under_a_name_without_a_known_digest_is_refused(mirror: Mirror, nano: Path) -> None:
    mirror.files["/yolox_darknet.onnx"] = nano.read_bytes()
    with pytest.raises(CheckpointError, match=r"takes images of \(416, 416\).*yolov3 takes \(640, 640\)"):
        get_weights("darknet53", format="onnx")
    mirror.files["/yolox_tiny.onnx"] = nano.read_bytes()
    with pytest.raises(CheckpointError, match="it holds yolox_nano with 80 classes, not yolox_tiny"):
        get_weights("yolox_tiny", format="onnx", unofficial=True)


def test_a_checkpoint_is_checked_against_the_keys_of_its_model(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files["/yolox_tiny.pth"] = _save("yolox_nano", tmp_path / "a.pth").read_bytes()
    with pytest.raises(CheckpointError, match="it holds yolox_nano with 80 classes, not yolox_tiny"):
        get_weights("yolox_tiny", format="pth", unofficial=True)
    mirror.files["/yolox_nano.pth"] = _save("yolox_nano", tmp_path / "a.pth", classes=3).read_bytes()
    with pytest.raises(CheckpointError, match="with 3 classes"):
        get_weights("yolox_nano", format="pth", unofficial=True)
    mirror.files["/yolox_nano.pth"] = b"not a checkpoint"
    with pytest.raises(CheckpointError, match="PyTorch checkpoint"):
        get_weights("yolox_nano", format="pth", unofficial=True)


def test_weights_of_ones_own_mirror_are_recorded_and_checked_ever_after(mirror: Mirror, tmp_path: Path) -> None:
    data = _save("yolox_nano", tmp_path / "a.pth").read_bytes()
    mirror.files["/yolox_nano.pth"] = data
    with pytest.raises(CheckpointError, match="--unofficial"):
        get_weights("yolox_nano", format="pth")
    path = get_weights("yolox_nano", format="pth", unofficial=True)
    (row,) = [row for row in list_weights() if row.state == "stored"]
    assert (row.sha256, row.size_bytes, row.official) == (hashlib.sha256(data).hexdigest(), len(data), False)
    times = path.stat()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CheckpointError, match="has changed since it was stored"):
        find_model("yolox_nano")
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert find_model("yolox_nano") == path


def test_the_digest_of_the_first_download_holds_for_the_next(mirror: Mirror, tmp_path: Path, cache: Path) -> None:
    # yolov3 has no known digest, and is large: the record alone stands for its first download.
    cache.mkdir()
    record = {"sha256": "0" * 64, "size_bytes": 5, "modified_ns": 1, "source": "the first"}
    (cache / "weights.json").write_text(json.dumps({"files": {"yolov3.pth": record}}))
    mirror.files["/yolox_darknet.pth"] = b"other"
    with pytest.raises(CheckpointError, match="the first download had 0000"):
        get_weights("yolov3", format="pth")


def test_a_damaged_file_is_fetched_again(mirror: Mirror, nano: Path) -> None:
    path = get_weights("yolox_nano", format="onnx")
    path.write_bytes(b"damaged")
    assert [row.state for row in verify_weights()] == ["changed"]
    assert get_weights("yolox_nano", format="onnx").read_bytes() == nano.read_bytes()
    assert [row.state for row in verify_weights()] == ["stored"]


def test_a_file_that_someone_put_there_is_kept(mirror: Mirror, nano: Path, cache: Path) -> None:
    cache.mkdir()
    (cache / "yolox_nano.onnx").write_bytes(b"mine")
    with pytest.raises(CheckpointError, match="Move it away"):
        get_weights("yolox_nano", format="onnx")
    assert (cache / "yolox_nano.onnx").read_bytes() == b"mine"
    shutil.copyfile(nano, cache / "yolox_nano.onnx")
    get_weights("yolox_nano", format="onnx")
    assert not mirror.seen


@pytest.mark.parametrize("kind", ["folder", "tar.gz", "zip", "file"])
def test_weights_come_from_a_folder_or_an_archive(nano: Path, tmp_path: Path, cache: Path, kind: str) -> None:
    source = tmp_path / "usb" / "deep"
    source.mkdir(parents=True)
    shutil.copyfile(nano, source / "yolox_nano.onnx")
    (source / "README").write_text("weights")
    if kind == "tar.gz":
        with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as tar:
            tar.add(source.parent, "usb")
    elif kind == "zip":
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as zipped:
            zipped.write(source / "yolox_nano.onnx", "yolox_nano.onnx")
    place = {"folder": source.parent, "file": source / "yolox_nano.onnx"}.get(kind, tmp_path / f"all.{kind}")
    assert add_weights(place) == [cache / "yolox_nano.onnx"] == add_weights(place)
    assert (cache / "yolox_nano.onnx").read_bytes() == nano.read_bytes()
    assert not [path for path in cache_folder().iterdir() if path.name.startswith(".weights-")]


def test_a_place_without_weights_or_with_two_is_refused(nano: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="can't be read"):
        add_weights(tmp_path / "nowhere")
    for name in ("a", "b"):
        (tmp_path / "usb" / name).mkdir(parents=True)
    with pytest.raises(DataError, match="holds no official weights"):
        add_weights(tmp_path / "usb")
    for name in ("a", "b"):
        shutil.copyfile(nano, tmp_path / "usb" / name / "yolox_nano.onnx")
    with pytest.raises(DataError, match="twice"):
        add_weights(tmp_path / "usb")


def test_an_archive_with_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "yolox_nano.onnx").symlink_to("/etc/passwd")
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        tar.add(tmp_path / "yolox_nano.onnx", "yolox_nano.onnx")
    with pytest.raises(DataError, match="is a link or a device"):
        add_weights(tmp_path / "all.tar")


def test_names_formats_and_records_that_are_wrong_are_sentences(mirror: Mirror, cache: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean 'yolox_nano'"):
        get_weights("yolox_nan")
    with pytest.raises(UsageError, match="Unknown format 'pt'"):
        get_weights("yolox_nano", format="pt")
    with pytest.raises(UsageError, match="boxwright weights add"):
        get_weights("yolox_nano", url="file:///srv")
    cache.mkdir()
    (cache / "weights.json").write_text("{")
    with pytest.raises(CheckpointError, match="can't be read"):
        list_weights()


def test_the_commands_fetch_list_verify_and_find(boxwright: Command, mirror: Mirror, cache: Path) -> None:
    missing = boxwright("predict", "yolox_nano", "cat.jpg")
    assert missing.code == 4
    assert "run `boxwright weights get yolox_nano`" in missing.err
    url = f"{mirror.address}/yolox_nano.onnx"
    got = boxwright("weights", "get", "yolox_nano", "--format", "onnx", "--url", url, "--json")
    assert json.loads(got.out) == [str(cache / "yolox_nano.onnx")], got.err
    assert boxwright("weights", "path", "yolox_nano").out.strip() == str(cache / "yolox_nano.onnx")
    picture = cv2.imencode(".png", np.zeros((60, 80, 3), np.uint8))[1].tobytes()
    assert "is taken as" not in boxwright("predict", "yolox_nano", "-", stdin=picture).err
    rows = json.loads(boxwright("weights", "list", "--json").out)
    assert len(rows) == 14
    assert [(row["model"], row["format"]) for row in rows if row["state"] == "stored"] == [("yolox_nano", "onnx")]
    assert "stored (official)" in boxwright("weights", "verify").out
    (cache / "yolox_nano.onnx").write_bytes(b"damaged")
    verified = boxwright("weights", "verify", "yolox_nano")
    assert verified.code == 4
    assert "boxwright weights get yolox_nano --format onnx" in verified.err
    assert "yolov3      pth" in boxwright("weights", "list").out
