"""Training on machines that share no files: data by URL or through the engine, the run's files by a store.

All "machines" are this one. So the workers are kept honest: the data set is moved away once it is packed, and a
callback in the first worker fails the run when it finds one of its own files in the starting program's folder.
"""

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from support.clusters import RayCluster
from support.runs import DieOnce, check_same, make_config

from boxwright.accel.checkpoint import load_checkpoint
from boxwright.cli import main
from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.world import World
from boxwright.detector.yolox import build
from boxwright.launchers.base import WorkerFailed
from boxwright.launchers.files import FILES, carried_file
from boxwright.launchers.placement import make_workers_anywhere
from boxwright.tasks.data import convert_set
from boxwright.tasks.train import run as train_run
from boxwright.tasks.train.loggers import Callback
from boxwright.tasks.train.run import train

RAY = pytest.mark.xdist_group("ray")
SPARK = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where every process of these tests keeps what it fetches, those of a cluster too."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOXWRIGHT_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def tar_url(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    archive = tmp_path_factory.mktemp("archive") / "scenes.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(scenes, "scenes")
    return f"file://{archive}"


class NothingOfMine(Callback):
    """Fails the run when the first worker finds its files in the starting program's folder.

    It also writes down where the launcher's files were on the worker's machine.
    """

    def __init__(self, folder: Path, carried: Path) -> None:
        self._folder, self._carried = folder, carried

    def on_start(self, settings: Any) -> None:
        assert settings["output_dir"] != str(self._folder)
        with self._carried.open("a") as file:
            file.write(os.environ[FILES] + "\n")

    def on_step(self, step: int, values: Any) -> None:
        assert not (self._folder / "metrics.jsonl").exists()
        assert not (self._folder / "data.lock").exists()


@pytest.fixture
def moved_away(scenes: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the data set gone as soon as it is packed."""
    away = scenes.with_name("away")
    pack = train_run.pack

    def pack_and_move(*args: Any, **kwargs: Any) -> int:
        size = pack(*args, **kwargs)
        scenes.rename(away)
        return size

    monkeypatch.setattr(train_run, "pack", pack_and_move)
    yield
    away.rename(scenes)


def check_nothing_left(carried: Path, *, starts: int) -> None:
    """What the launcher carried was there at each start, and is gone."""
    folders = carried.read_text().splitlines()
    assert len(folders) == starts
    assert [folder for folder in folders if Path(folder).parent.exists()] == []


def check_run_folder(out: Path) -> None:
    """All that a run leaves is in the starting program's folder."""
    for name in ("args.yaml", "plan.txt", "results.csv", "data_report.json", "data.lock", "report.html", "result.json"):
        assert (out / name).is_file(), name
    assert Path(json.loads((out / "result.json").read_text())["checkpoint"]).is_relative_to(out)
    assert not (out / ".data.tar").exists()


@pytest.mark.xdist_group("by_hand")
def test_a_store_and_data_by_url_go_on_in_a_new_folder(tar_url: str, tmp_path: Path, by_hand: dict[str, Any]):
    store = f"file://{tmp_path}/far"
    with pytest.raises(WorkerFailed, match="signal 9"):
        train(make_config(tar_url, tmp_path / "a", store=store), callbacks=[DieOnce(6)])
    with pytest.raises(UsageError, match="holds a run already"):
        train(make_config(tar_url, tmp_path / "b", store=store))

    result = train(make_config(tar_url, tmp_path / "b", store=store, resume=True))

    check_same(tmp_path / "b", by_hand)
    check_run_folder(tmp_path / "b")
    assert result.checkpoint == tmp_path / "b" / "weights" / "best.safetensors"
    assert (tmp_path / "far" / "report.html").read_bytes() == (tmp_path / "b" / "report.html").read_bytes()
    assert not list((tmp_path / "far").rglob("*.part"))


def make_weights(folder: Path) -> Path:
    path = folder / "start.pth"
    torch.save({"model": build("yolox_nano", 2).state_dict()}, path)
    return path


def test_the_command_takes_settings_from_the_store(scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    far, first, second = str(tmp_path / "far"), str(tmp_path / "a"), str(tmp_path / "b")
    words = [
        "--ckpt", str(make_weights(tmp_path)), "--val", "0.25", "-b", "4", "--size", "96", "steps=2", "workers=1",
        "augment=false",
    ]  # fmt: skip
    assert main(["train", "--data", f"file://{scenes}", "--store", far, "--out", first, *words]) == 0
    assert main(["train", "--resume", "--store", far, "--out", second]) == 0
    assert "2 steps" in capsys.readouterr().out
    assert load_checkpoint(tmp_path / "b" / "weights" / "last.pt")["step"] == 2


def test_there_is_nothing_to_resume_in_an_empty_store(scenes: Path, tmp_path: Path):
    with pytest.raises(CheckpointError, match="holds no run to resume"):
        train(make_config(scenes, tmp_path / "a", store=str(tmp_path / "far"), resume=True))


@RAY
def test_on_ray_shipped_data_and_a_store_need_no_shared_files(
    ray_cluster: RayCluster, scenes: Path, tmp_path: Path, by_hand: dict[str, Any], moved_away: None
):
    out, carried = tmp_path / "out", tmp_path / "carried"
    config = make_config(scenes, out, strategy="ray", ship=True, store=str(tmp_path / "far"), max_restarts=1)

    result = train(config, callbacks=[NothingOfMine(out, carried), DieOnce(6)])

    check_same(out, by_hand)
    check_run_folder(out)
    plan = (out / "plan.txt").read_text()
    assert "processes    2 (ray)" in plan
    assert "all are restarted, once" in plan
    assert result.checkpoint.is_file()
    check_nothing_left(carried, starts=2)


@pytest.mark.more
@RAY
def test_on_ray_a_run_goes_on_from_its_store_with_data_by_url(
    ray_cluster: RayCluster, tar_url: str, tmp_path: Path, by_hand: dict[str, Any]
):
    settings: dict[str, Any] = {"strategy": "ray", "store": str(tmp_path / "far")}
    with pytest.raises(WorkerFailed, match="signal 9"):
        train(make_config(tar_url, tmp_path / "a", **settings), callbacks=[DieOnce(6)])
    assert (tmp_path / "a" / "metrics.jsonl").is_file(), "what was saved comes back also after a failure"

    train(make_config(tar_url, tmp_path / "b", resume=True, **settings))

    check_same(tmp_path / "b", by_hand)
    check_run_folder(tmp_path / "b")


class FromShippedWeights(Callback):
    """Fails the run unless it starts from weights among the launcher's files."""

    def on_start(self, settings: Any) -> None:
        assert Path(settings["ckpt"]).parent == Path(os.environ[FILES])


@pytest.mark.more
@RAY
def test_on_ray_weights_to_start_from_are_shipped_too(ray_cluster: RayCluster, scenes: Path, tmp_path: Path):
    ckpt, out = make_weights(tmp_path), tmp_path / "out"
    config = make_config(scenes, out, strategy="ray", ship=True, ckpt=ckpt, steps=2, eval_interval=0)

    assert train(config, callbacks=[FromShippedWeights()]).steps == 2


def hash_file(_: World) -> tuple[str, Path]:
    path = carried_file("big")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), path


@RAY
def test_a_large_file_comes_through(ray_cluster: RayCluster, tmp_path: Path):
    from boxwright.launchers.ray_ import RayLauncher

    big = tmp_path / "big"
    big.write_bytes(os.urandom(1 << 20) * 120)

    found, path = RayLauncher(files=(big,)).run(hash_file, make_workers_anywhere(2))

    assert found == hashlib.sha256(big.read_bytes()).hexdigest()
    assert path != big
    assert not path.parent.parent.exists()


def train_on_shards(scenes: Path, folder: Path, kind: Literal["webdataset", "parquet"], strategy: str) -> None:
    """Train on shards by URL, killed and restarted within an epoch, and on the same shards here, without a break."""
    convert_set(scenes, folder / "shards", to=kind, shard_images=3)
    whole = make_config(folder / "shards", folder / "whole", augment=True)
    train(whole)
    far = {"strategy": strategy, "store": str(folder / "far"), "max_restarts": 1, "augment": True}

    train(make_config(f"file://{folder}/shards", folder / "out", **far), callbacks=[DieOnce(6)])

    check_same(folder / "out", load_checkpoint(folder / "whole" / "weights" / "last.pt"))


@RAY
def test_on_ray_a_run_on_shards_by_url_resumes_within_an_epoch(ray_cluster: RayCluster, scenes: Path, tmp_path: Path):
    train_on_shards(scenes, tmp_path, "parquet", "ray")


@pytest.mark.more
@SPARK
def test_on_spark_a_run_on_shards_by_url_resumes_within_an_epoch(spark_cluster: str, scenes: Path, tmp_path: Path):
    train_on_shards(scenes, tmp_path, "webdataset", "spark")


@SPARK
def test_on_spark_shipped_data_and_a_store_need_no_shared_files(
    spark_cluster: str, scenes: Path, tmp_path: Path, by_hand: dict[str, Any], moved_away: None
):
    out, carried = tmp_path / "out", tmp_path / "carried"
    config = make_config(scenes, out, strategy="spark", ship=True, store=str(tmp_path / "far"), max_restarts=1)

    result = train(config, callbacks=[NothingOfMine(out, carried), DieOnce(6)])

    check_same(out, by_hand)
    check_run_folder(out)
    assert result.checkpoint.is_file()
    check_nothing_left(carried, starts=2)
