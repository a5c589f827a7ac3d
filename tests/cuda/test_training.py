"""Whole trainings on a GPU, as a user starts them."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from boxwright.cli import main
from boxwright.core.errors import UsageError
from boxwright.data.synthetic import generate_scenes
from boxwright.detector.weights import read_state
from boxwright.devices.cuda import CudaDevice
from boxwright.tasks.train.run import TrainConfig, train

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device (make test-cuda)"),
]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    generate_scenes(folder, images=48, seed=0, size_hw=(128, 128), classes=("circle", "square"))
    return folder


def make_config(scenes: Path, out: Path, **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "model": "yolox_nano", "data": scenes, "output_dir": out, "val": 0.25, "batch": 8, "steps": 8,
        "size_hw": (128, 128), "eval_interval": 0, "print_interval": 4, "workers": 2, "device": "cuda",
    }  # fmt: skip
    return TrainConfig(**(settings | changes))


@pytest.mark.parametrize("precision", ["32", "bf16", "16"])
def test_a_run_of_every_precision_leaves_weights_that_a_cpu_reads(scenes: Path, tmp_path: Path, precision: str) -> None:
    result = train(make_config(scenes, tmp_path, precision=precision))
    assert result.steps == 8
    state, _ = read_state(result.checkpoint)
    assert all(value.device.type == "cpu" for value in state.values())
    assert all(torch.isfinite(value).all() for value in state.values() if value.is_floating_point())


def test_a_stopped_run_goes_on_where_it_was(scenes: Path, tmp_path: Path) -> None:
    # The GPU is fed ahead of time: the position in the data must be the one of the last step, not of the last batch.
    train(make_config(scenes, tmp_path / "a", steps=4))
    saved = torch.load(tmp_path / "a" / "weights" / "last.pt", weights_only=True, map_location="cpu")
    assert saved["step"] == 4
    assert saved["position"] == [1, 0]  # 36 images, 8 a step: 4 steps an epoch


def test_the_loss_falls(scenes: Path, tmp_path: Path) -> None:
    train(make_config(scenes, tmp_path, steps=60, mosaic=False, lr_per_image=0.001, print_interval=1, precision="bf16"))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    totals = [line["total"] - line["l1"] for line in lines if "total" in line]
    assert sum(totals[-10:]) < 0.9 * sum(totals[:10])


def test_the_command_line_trains_with_changing_sizes(scenes: Path, tmp_path: Path) -> None:
    words = ["--device", "cuda", "--precision", "bf16", "-b", "8", "--size", "128", "--val", "0.25"]
    settings = ["steps", "24", "multiscale=true", "workers=2"]
    assert main(["train", "--data", str(scenes), "--out", str(tmp_path / "run"), *words, *settings]) == 0
    assert "IEEE" not in (tmp_path / "run" / "plan.txt").read_text()


def test_a_batch_that_is_too_large_is_answered_with_one_that_fits(scenes: Path, tmp_path: Path) -> None:
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(8 * 2**30 / torch.cuda.mem_get_info()[1], 1.0))
    settings = {"size_hw": (1024, 1024), "steps": 1, "precision": "32"}
    try:
        with pytest.raises(UsageError, match=r"36 at up to \(1024, 1024\) does not fit the [0-8]\.") as caught:
            train(make_config(scenes, tmp_path / "a", batch=36, **settings))
        torch.cuda.empty_cache()
        fits = int(str(caught.value).split("--batch ")[1].split(",")[0])
        assert 1 <= fits <= 18
        train(make_config(scenes, tmp_path / "b", batch=fits, **settings))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_group_over_nccl_shares_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    device = CudaDevice()
    place = device.place(0)
    device.join_group(place, timedelta(seconds=60))
    try:
        model = DistributedDataParallel(nn.Linear(3, 1).to(place), device_ids=device.parallel_devices(place))
        model(torch.ones(2, 3, device=place)).sum().backward()
        assert model.module.weight.grad.tolist() == [[2.0, 2.0, 2.0]]
    finally:
        torch.distributed.destroy_process_group()
