"""An OpenVINO artifact runs in a Python that has neither torch nor NNCF, and tells nobody that it does."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.networks import lively_nano

from boxwright.core.spec import Spec
from boxwright.runtimes.artifact import write_artifact
from boxwright.runtimes.base import Choice
from boxwright.runtimes.source import Source

pytest.importorskip("openvino")
PROGRAM = """
import sys
from pathlib import Path
blocked = ("torch", "nncf", "onnx", "onnxruntime", "safetensors", "lightning")
sys.modules.update(dict.fromkeys(blocked))  # as if they were not installed
import numpy as np
from boxwright.tasks.models import open_model
from boxwright.runtimes.artifact import open_graph, read_golden
from boxwright.runtimes.parity import distance
folder = Path(sys.argv[1])
inputs, outputs = read_golden(folder)
assert distance(open_graph(folder).run(inputs), outputs) < 1e-3
session = open_model(folder)
assert session(np.zeros((3, 3, 64, 96), np.float32)).shape == (3, session.spec.num_anchors, 8)
assert not any(sys.modules.get(name) for name in blocked)
assert "openvino" in sys.modules and "openvino_telemetry" not in sys.modules
print("ran")
"""


@pytest.mark.usefixtures("one_torch_thread")
def test_a_converted_detector_runs_without_torch(tmp_path: Path) -> None:
    spec = Spec(model="yolox_nano", names=("a", "b", "c"), size_hw=(64, 96))
    source = Source.of(lively_nano(), (torch.rand(1, 3, 64, 96) * 255,))
    write_artifact(source, Choice(runtime="openvino"), tmp_path / "artifact", spec=spec)
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(tmp_path / "artifact")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
