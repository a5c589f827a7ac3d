"""`boxwright predict --engine`: the command over this machine's processes, and the options that don't go together."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.fixtures import Command
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
