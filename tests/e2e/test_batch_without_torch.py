"""Batch prediction of a converted model needs no torch, here and in the processes that it starts."""

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.scenes import save_scene

BLOCKED = ("torch", "lightning", "safetensors", "onnx", "onnxscript", "PIL")
# The processes of a pool run this file's top too, as __mp_main__.
PROGRAM = f"""
import sys
sys.modules.update(dict.fromkeys({BLOCKED!r}))
from boxwright.cli import main
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_folder_is_predicted_where_torch_cannot_be_imported(toy_onnx: Path, tmp_path: Path, workers: int) -> None:
    for number in range(4):
        save_scene(tmp_path / "images" / f"{number}.png", ("green", number, 0))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = ["predict", toy_onnx, "images", "--engine", "local", "--workers", workers, "--part-rows", 1, "--out", "out"]
    done = subprocess.run(
        [sys.executable, "-W", "error", program, *map(str, words)],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert [row["names"] for row in rows] == [["green"]] * 4
