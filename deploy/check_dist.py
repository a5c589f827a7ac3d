"""Install the built wheel with each extra into a fresh virtual environment, and try it: make check-dist.

Environments without torch must predict without it. The models that they run are exported in the first environment.
Name extras to try only these (besides the first): make check-dist EXTRAS='onnx openvino'
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST = "export"
TORCH_FREE = ("", "eval", "onnx", "openvino", "serve", "serve-ray", "batch", "plots")
WITH_TORCH = ("train", "quantize", "optimize", "ray", "spark", "tune", "all")

MAKE = """
import sys, torch
from pathlib import Path
from boxwright.accel.kernels.native import PREBUILT, find_prebuilt, load_kernels
from boxwright.core.cpu import cpu_flags
from boxwright.core.spec import Spec
from boxwright.detector.weights import save_weights
from boxwright.detector.yolox import build
torch.manual_seed(0)
spec = Spec(model="yolox_nano", names=("cat", "dog"), size_hw=(64, 64))
save_weights(Path("model.safetensors"), build("yolox_nano", 2).eval(), spec)
carried = find_prebuilt(PREBUILT, cpu_flags())
assert carried is None or load_kernels()._name == str(carried), "the wheel's kernels were not loaded"
"""
PICTURE = "import cv2, numpy; assert cv2.imwrite('picture.png', numpy.zeros((80, 60, 3), numpy.uint8))"
NO_TORCH = "import importlib.util as u; assert u.find_spec('torch') is None, 'torch is here'"
# What an extra is for, tried with the command `boxwright` or, if it ends in .py, as a program.
TRIES: dict[str, list[list[str]]] = {
    "eval": [["-c", "import boxwright; boxwright.CocoEvaluator"]],
    "onnx": [["boxwright", "predict", "model.onnx", "picture.png", "--save"]],
    "openvino": [["boxwright", "predict", "openvino", "picture.png", "--save"]],
    "serve": [["-c", "import boxwright.serve.app"]],
    "serve-ray": [["-c", "import boxwright.serve.app, ray.serve"]],
    "batch": [["-c", "import boxwright.tasks.batch.local"]],
    "plots": [["-c", "import matplotlib"]],
    "train": [["boxwright", "info", "model.safetensors"]],
    "quantize": [["boxwright", "predict", "openvino", "picture.png", "--save"], ["-c", "import nncf"]],
    "optimize": [["boxwright", "predict", "model.onnx", "picture.png", "--save"], ["-c", "import nncf, onnxscript"]],
    "ray": [["-c", "import boxwright.launchers.ray_"]],
    "spark": [["-c", "import boxwright.launchers.spark_"]],
    "tune": [["-c", "import optuna, boxwright.tasks.tune.config"]],
    "all": [["boxwright", "predict", "model.onnx", "picture.png", "--save"]],
}


class Place:
    """A fresh virtual environment with the wheel and one extra."""

    def __init__(self, folder: Path, wheel: Path, extra: str, work: Path) -> None:
        self._bin, self._work = folder / "bin", work
        venv.create(folder, with_pip=True)
        self.run(
            "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile",
            "--constraint", ROOT / "constraints.txt", f"{wheel}[{extra}]" if extra else wheel,
        )  # fmt: skip

    def run(self, *words: object) -> None:
        """Run Python, or a command of the environment, and end with its output if it fails."""
        first, *rest = map(str, words)
        command = [self._bin / "python", first, *rest] if first.startswith("-") else [self._bin / first, *rest]
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(command, cwd=self._work, env=env, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def choose_wheel(folder: Path) -> Path:
    """Return the wheel that pip would take: the platform's, if there is one."""
    wheels = sorted(folder.glob("*.whl"), key=lambda path: path.name.endswith("-any.whl"))
    if not wheels:
        sys.exit(f"There is no wheel in {folder}. Run: make dist")
    return wheels[0].resolve()


def main() -> None:
    """Try the extras one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("extras", nargs="*", default=[*TORCH_FREE, *WITH_TORCH])
    args = parser.parse_args()
    wheel = choose_wheel(args.dist)
    with tempfile.TemporaryDirectory(prefix="boxwright-dist-") as scratch:
        work, folder = Path(scratch, "work"), Path(scratch, "venv")
        work.mkdir()
        for extra in (FIRST, *(extra for extra in args.extras if extra != FIRST)):
            start_s = time.monotonic()
            place = Place(folder, wheel, extra, work)
            place.run("boxwright", "doctor", "--json")
            if extra == FIRST:
                place.run("-c", PICTURE)
                place.run("-c", MAKE)
                place.run("boxwright", "export", "model.safetensors", "--out", "model.onnx")
                place.run("-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", "openvino")
                place.run("boxwright", "export", "model.safetensors", "--format", "openvino", "--out", "openvino")
            if extra in TORCH_FREE:
                place.run("-c", NO_TORCH)
            for words in TRIES.get(extra, ()):
                place.run(*words)
            shutil.rmtree(folder)
            print(f"{wheel.name}[{extra}]: ok, {time.monotonic() - start_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
