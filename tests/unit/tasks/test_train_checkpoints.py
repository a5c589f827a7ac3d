from pathlib import Path
from typing import Any

import pytest
import torch

from boxwright.core.errors import CheckpointError
from boxwright.tasks.train.checkpoints import check_saved
from boxwright.tasks.train.resume import writing_to

PATH = Path("run/weights/last.pt")


def saved(**changes: Any) -> dict[str, Any]:
    state: dict[str, Any] = {
        "format": 1, "step": 2, "position": [0, 8], "best": {}, "last": {}, "without_better": 0, "model": {},
        "average": {}, "average_steps": 2, "optimizer": {}, "scaler": None, "rng": torch.get_rng_state(), "data": "",
        "course": [6, 2, 4], "world_size": 1, "threads": 1, "config": "model: yolox_nano\n",
    }  # fmt: skip
    return state | changes


def test_a_run_of_ours_passes() -> None:
    check_saved(saved(), PATH)


@pytest.mark.parametrize(
    "changes",
    [
        {"config": None}, {"config": {}}, {"course": 3},
        {"course": [1, 2]}, {"position": ["a", "b"]}, {"step": "1"}, {"model": []}, {"optimizer": None}, {"rng": 1},
        {"best": None},
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_a_checkpoint_of_something_else_is_refused_before_it_is_used(changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=rf"last\.pt' is not one of a training run: '{next(iter(changes))}'"):
        check_saved(saved(**changes), PATH)


def test_an_empty_checkpoint_is_refused() -> None:
    with pytest.raises(CheckpointError, match="not one of a training run"):
        check_saved({}, PATH)


@pytest.mark.parametrize("saved_before", [True, False])
def test_a_full_disk_promises_only_what_is_there(tmp_path: Path, saved_before: bool) -> None:
    if saved_before:
        (tmp_path / "weights").mkdir()
        (tmp_path / "weights" / "last.pt").touch()
    said = "is still there" if saved_before else "No checkpoint had been saved yet"
    with pytest.raises(CheckpointError, match=rf"No space left on device\..*{said}"), writing_to(tmp_path):
        raise OSError(28, "No space left on device")
