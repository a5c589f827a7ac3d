"""2,000 images through each engine with two workers, one in a hundred broken, killed half-way and resumed."""

import importlib.util
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import psutil
import pyarrow.parquet as pq
import pytest
from support.clusters import RayCluster
from support.scenes import scene
from support.shared import ROOT

from boxwright.core.errors import UsageError
from boxwright.data.synthetic import generate_scenes
from boxwright.tasks.batch.config import BatchConfig, BatchResult
from boxwright.tasks.batch.job import predict_in_batches

RAY = pytest.mark.xdist_group("ray")
SPARK = pytest.mark.xdist_group("spark")
NO_PANDAS_WARNING = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
IMAGES, PART_ROWS = 2000, 100
COLOURS = ("red", "green", "blue")

# A command that is killed when a few parts are done.
KILLED = """
import os, signal, sys
from boxwright.tasks.batch.config import BatchConfig
from boxwright.tasks.batch.job import predict_in_batches

def die(done, total):
    if done >= 3:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    model, data, out, engine, rows, *more = sys.argv[1:]
    where = {"address": more[0]} if more else {}
    predict_in_batches(
        BatchConfig(model=model, data=data, out=out, engine=engine, workers=2, part_rows=int(rows), **where), die
    )
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from support.toy import save_toy_onnx, toy_spec

    return save_toy_onnx(tmp_path_factory.mktemp("model") / "toy.onnx", spec=toy_spec())


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images whose one square tells their number; those with 42 at the end of it are broken."""
    folder = tmp_path_factory.mktemp("images")
    drawn = {}
    for number in range(IMAGES):
        key = (number % 3, number // 3 % 8)
        if key not in drawn:
            drawn[key] = cv2.imencode(".jpg", scene((COLOURS[key[0]], key[1], 0)))[1].tobytes()
        data = drawn[key]
        (folder / f"{number:04d}.jpg").write_bytes(data[:40] if number % 100 == 42 else data)
    return folder


def kill_half_way(*words: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, words)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def check(out: Path, result: BatchResult) -> None:
    """Check that each image has its row, once, and that the rows are right."""
    assert 3 <= result.skipped < result.parts == IMAGES // PART_ROWS
    assert result.loads == result.processes
    rows = pq.read_table(out).to_pylist()
    assert Counter(Path(row["path"]).name for row in rows) == Counter(f"{n:04d}.jpg" for n in range(IMAGES))
    for row in rows:
        number = int(Path(row["path"]).stem)
        if number % 100 == 42:
            assert "cut off" in row["error"]
            assert row["boxes_xyxy"] is None
        else:
            assert (row["error"], row["names"]) == (None, [COLOURS[number % 3]])
            assert row["boxes_xyxy"][0][0] == pytest.approx(8 * (number // 3 % 8), abs=1)
    assert not list(out.glob(".*"))


@RAY
def test_on_ray_each_image_has_one_row_though_the_command_and_then_a_worker_are_killed(
    ray_cluster: RayCluster, model: Path, images: Path, tmp_path: Path
):
    kill_half_way(model, images, tmp_path / "out", "ray", PART_ROWS, ray_cluster.address)
    killed: list[int] = []

    def kill_a_worker(done: int, total: int) -> None:
        for process in psutil.process_iter(["name"]):
            if not killed and (process.info["name"] or "").startswith("ray::PartWorker"):
                process.kill()
                killed.append(process.pid)

    config = BatchConfig(model=model, data=images, out=tmp_path / "out", engine="ray", workers=2, part_rows=PART_ROWS)
    result = predict_in_batches(config, kill_a_worker)

    assert killed
    check(tmp_path / "out", result)
    assert predict_in_batches(config).skipped == result.parts


@SPARK
@NO_PANDAS_WARNING
def test_on_spark_each_image_has_one_row_though_the_command_was_killed(
    spark_here: None, model: Path, images: Path, tmp_path: Path
):
    kill_half_way(model, images, tmp_path / "out", "spark", PART_ROWS)
    config = BatchConfig(model=model, data=images, out=tmp_path / "out", engine="spark", part_rows=PART_ROWS)
    result = predict_in_batches(config)

    assert result.processes == 2
    check(tmp_path / "out", result)
    with pytest.raises(UsageError, match="a Spark session is active"):
        predict_in_batches(BatchConfig(model=model, data=images, out=tmp_path / "x", engine="spark", workers=1))


def load_example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Two processes, as the examples have them by default.
SMALL: dict[str, Any] = {
    "steps": 4, "batch": 4, "size_hw": (64, 64), "augment": False, "print_interval": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    generate_scenes(folder, images=20, seed=0, size_hw=(64, 64), classes=("circle", "square"))
    return folder


@RAY
def test_the_examples_run_on_ray(ray_cluster: RayCluster, model: Path, images: Path, scenes: Path, tmp_path: Path):
    result = load_example("yolox_ray").run(scenes, tmp_path / "run", ray_cluster.address, **SMALL)
    assert result["steps"] == SMALL["steps"]
    assert (tmp_path / "run" / "weights" / "last.pt").is_file()
    check_counts(load_example("batch_inference").run(model, images, tmp_path / "out", engine="ray", workers=2))


@SPARK
@NO_PANDAS_WARNING
def test_the_examples_run_on_spark(spark_here: None, model: Path, images: Path, scenes: Path, tmp_path: Path):
    result = load_example("yolox_spark").run(scenes, tmp_path / "run", **SMALL)
    assert result["steps"] == SMALL["steps"]
    assert (tmp_path / "run" / "weights" / "last.pt").is_file()
    check_counts(load_example("batch_inference").run(model, images, tmp_path / "out", engine="spark"))


def check_counts(counts: dict[str, int]) -> None:
    assert counts["unreadable"] == IMAGES // 100
    assert sum(counts.values()) == IMAGES  # one square each
