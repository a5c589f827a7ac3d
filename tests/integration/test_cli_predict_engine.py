"""`boxwright predict --engine`: the command over this machine's processes, and the options that don't go together."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from support.fixtures import Command
from support.processes import has_ended
from support.scenes import save_scene

pytest.importorskip("pyarrow", reason="pyarrow is not installed")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for number in range(6):
        save_scene(tmp_path / "images" / f"{number}.png", ("red", number, 0))
    (tmp_path / "images" / "bad.png").write_bytes(b"")
    return tmp_path / "images"


def test_two_processes_write_the_parts_and_a_bad_image_is_no_failure(
    boxwright: Command, toy_onnx: Path, images: Path, tmp_path: Path
):
    words = ["predict", toy_onnx, images, "--engine", "local", "--workers", 2, "--part-rows", 2, "--out", "out"]
    done = boxwright(*words, "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert (result["images"], result["parts"], result["errors"]) == (7, 4, 1)
    assert result["loads"] == result["processes"] <= 2
    assert "1 images could not be read; their rows say why" in done.err
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert sorted(Path(row["path"]).name for row in rows) == [*[f"{n}.png" for n in range(6)], "bad.png"]
    assert sum(len(row["names"] or ()) for row in rows) == 6

    again = boxwright(*words)
    assert again.out == f"7 images in 4 parts, 4 of them by an earlier run: {tmp_path / 'out'}\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_the_workers_end_with_the_command(
    toy_onnx: Path, images: Path, tmp_path: Path, number: signal.Signals, code: int
):
    for copy in range(300):
        (images / f"copy_{copy}.png").hardlink_to(images / "0.png")
    words = ["predict", toy_onnx, images, "--engine", "local", "--workers", "2", "--part-rows", "2", "--out", "out"]
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "boxwright", *map(str, words)],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    ) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if " of 154 parts" in line)
        workers = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        (folder,) = (tmp_path / "tmp").glob("boxwright-batch-*")
        (folder / "unfinished").touch()  # as a worker leaves it that ends while it loads the model
        process.send_signal(number)
        assert process.wait(timeout=60) == code
        assert "Traceback" not in process.stderr.read()
    assert len(workers) >= 2
    assert all(has_ended(pid, within_s=30) for pid in workers)
    assert folder.exists() == (number == signal.SIGKILL)
    for part in (tmp_path / "out").glob("part-*.parquet"):
        assert len(pq.read_table(part)) in (1, 2)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--engine", "ray"], "--engine ray needs --out DIR"),
        (["more", "--engine", "ray", "--out", "out"], "takes one folder, parquet file or URL, not 2"),
        (["--engine", "local", "--out", "out", "--save", "json"], "--save does not apply to --engine local"),
        (["--engine", "local", "--out", "out", "--master", "yarn"], "master='yarn' is for engine 'spark'"),
        (["--threads", "2"], "--threads 2 does nothing without --engine"),
        (["--part-rows", "2"], "--part-rows 2 does nothing without --engine"),
    ],
)
def test_options_that_cannot_apply_are_refused(
    boxwright: Command, toy_onnx: Path, images: Path, words: list[str], answer: str
):
    done = boxwright("predict", toy_onnx, images, *words)
    assert done.code == 2
    assert answer in done.err
