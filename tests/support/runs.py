"""A small training run, killed at a known step, and what it must be equal to."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from boxwright.accel.checkpoint import load_checkpoint
from boxwright.launchers.base import WorkerFailed, current_attempt
from boxwright.tasks.train.loggers import Callback
from boxwright.tasks.train.run import TrainConfig, train

SETTINGS: dict[str, Any] = {
    "model": "yolox_nano", "val": 0.25, "batch": 4, "steps": 8, "size_hw": (96, 96), "eval_interval": 1,
    "print_interval": 1, "workers": 1, "num_processes": 2, "augment": False,
}  # fmt: skip


def make_config(data: Path | str, out: Path, **changes: Any) -> TrainConfig:
    return TrainConfig(**({"data": data, "output_dir": out} | SETTINGS | changes))


class DieOnce(Callback):
    """Kills the first worker at a step of its first attempt."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step(self, step: int, values: Any) -> None:
        if step == self._step and current_attempt() == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def resume_by_hand(data: Path, folder: Path) -> None:
    """Train on this machine; the run dies after its first evaluation and is resumed."""
    with pytest.raises(WorkerFailed, match="signal 9") as caught:
        train(make_config(data, folder), callbacks=[DieOnce(6)])
    assert (caught.value.rank, caught.value.kind) == (0, "death")
    assert load_checkpoint(folder / "weights" / "last.pt")["step"] == 5
    assert train(make_config(data, folder, resume=True)).steps == SETTINGS["steps"]


def check_same(folder: Path, other: dict[str, Any]) -> None:
    """The run in a folder ended with the weights of another one's last checkpoint."""
    ours = load_checkpoint(folder / "weights" / "last.pt")
    assert ours["step"] == other["step"] == SETTINGS["steps"]
    for part in ("model", "average"):
        for key, value in other[part].items():
            assert torch.equal(value, ours[part][key]), (part, key)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "total" in line][-1] == SETTINGS["steps"]
