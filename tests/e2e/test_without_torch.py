"""A deployment has no torch: predict, eval and info of an ONNX file must work in a Python that can't import it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.mirror import serve_files
from support.shared import shared_path

BLOCKED = ("torch", "lightning", "pytorch_lightning", "safetensors", "onnx", "onnxscript", "PIL", "matplotlib")
PROGRAM = f"""
import sys
sys.modules.update(dict.fromkeys({BLOCKED!r}))  # as if they were not installed
from boxwright.cli import main
code = main()
assert not any(sys.modules.get(name) for name in {BLOCKED!r})
sys.exit(code)
"""


def _run(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


@pytest.fixture
def model() -> Path:
    return shared_path("weights/yolox_nano/yolox_nano.onnx")


@pytest.fixture
def data() -> Path:
    return shared_path("data/coco_val300")


def test_predict_finds_things_and_writes_every_format(model: Path, data: Path, tmp_path: Path) -> None:
    images = sorted((data / "images").glob("*.jpg"))[:3]
    done = _run(
        "predict", model, *images, "--json", "--out", "out", "--save", "images", "json", "csv", "coco", "yolo",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["source"] for r in records] == [str(path) for path in images]
    assert sum(len(r["detections"]) for r in records) > 5
    assert len(list((tmp_path / "out").glob("*.jpg"))) == 3


def test_eval_scores_a_few_images(model: Path, data: Path, tmp_path: Path) -> None:
    done = _run("eval", model, "--data", data, "--limit", "20", "--conf", "0.01", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert values["images"] == 20
    assert 0.2 < values["AP"] < 0.6


def test_info_and_doctor_say_what_they_can(model: Path, tmp_path: Path) -> None:
    info = _run("info", model, "--json", cwd=tmp_path)
    assert info.returncode == 0, info.stderr
    values = json.loads(info.stdout)
    assert (values["num_classes"], values["size_hw"]) == (80, [416, 416])
    assert values["parameters"] is None
    doctor = _run("doctor", cwd=tmp_path)
    assert doctor.returncode == 0, doctor.stderr


def test_official_weights_are_fetched_and_used_by_name(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    image = min((data / "images").glob("*.jpg"))
    with serve_files() as mirror:
        mirror.files["/yolox_nano.onnx"] = model.read_bytes()
        got = _run("weights", "get", "yolox_nano", "--url", mirror.address, cwd=tmp_path)
        assert got.returncode == 0, got.stderr
        needs_torch = _run("weights", "get", "yolox_nano", "--format", "pth", "--url", mirror.address, cwd=tmp_path)
    assert (needs_torch.returncode, len(mirror.seen)) == (1, 1)
    assert "--format onnx" in needs_torch.stderr
    done = _run("predict", "yolox_nano", image, "--save", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_weights_that_need_torch_say_which_extra_brings_it(tmp_path: Path) -> None:
    (tmp_path / "weights.pth").touch()
    done = _run("predict", "weights.pth", "a.jpg", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("MissingDependencyError: ")
    assert "pip install 'boxwright[train]'" in done.stderr
