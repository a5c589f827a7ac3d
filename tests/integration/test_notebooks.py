"""The notebooks of the tutorials, run as they stand but for their sizes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.shared import ROOT

SMALLER = {
    "images=600": "images=16",
    "steps 1000": "steps 4",
    "steps 100": "steps 2",
    "size_hw=[192,192]": "size_hw=[64,64]",
    "--max-drop 0.05": "--max-drop 1 --runs 5",
    " bf16_channels_last openvino_fp32 openvino_int8 onnxruntime_fp32": " openvino_fp32",
}
# Only the first tutorial is about training; it has the same command.
TRAINING = "%%bash\nboxwright train -n yolox_nano --data shapes --out runs/shapes "
UNTRAINED = """
from pathlib import Path
from boxwright.core.spec import Spec
from boxwright.detector.weights import save_weights
from boxwright.detector.yolox import build
Path("runs/shapes/weights").mkdir(parents=True)
spec = Spec(model="yolox_nano", names=("circle", "square", "star"), size_hw=(64, 64))
save_weights(Path("runs/shapes/weights/best.safetensors"), build("yolox_nano", 3).eval(), spec)
"""


def as_program(notebook: Path) -> str:
    """Return the cells of a notebook as one program, with smaller sizes."""
    lines = ["import subprocess"]
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        for large, small in SMALLER.items():
            source = source.replace(large, small)
        if notebook.stem != "train" and source.startswith(TRAINING):
            source = UNTRAINED
        if cell["cell_type"] == "code" and source.startswith("%%bash\n"):
            source = f"subprocess.run(['bash', '-euc', {source.removeprefix('%%bash')!r}], check=True)"
        if cell["cell_type"] == "code":
            lines.append(source)
    return "\n".join(lines)


@pytest.mark.parametrize(
    "name",
    ["train", "optimize", "serve", pytest.param("cluster", marks=pytest.mark.engines)],
)
def test_a_notebook_runs_from_its_first_cell_to_its_last(name: str, tmp_path: Path) -> None:
    program = as_program(ROOT / "examples" / "notebooks" / f"{name}.ipynb")
    assert "images=16" in program
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    (tmp_path / "notebook.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "notebook.py"], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
