import os
from pathlib import Path

import pytest
import torch
from support.disk import small_files

from boxwright.accel.checkpoint import load_checkpoint, save_checkpoint
from boxwright.accel.places import previous_of
from boxwright.core.errors import CheckpointError


def state(step: int) -> dict[str, object]:
    return {"step": step, "weights": {"w": torch.full((100,), float(step))}, "names": ["a", "b"], "rng": [1, 2.5, None]}


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "new" / "last.pt"
    save_checkpoint(path, state(3))
    loaded = load_checkpoint(path)
    assert loaded["step"] == 3
    assert loaded["names"] == ["a", "b"]
    assert loaded["rng"] == [1, 2.5, None]
    assert torch.equal(loaded["weights"]["w"], torch.full((100,), 3.0))


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone"])
def test_a_damaged_file_is_noticed_and_the_previous_one_used(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, state(1))
    save_checkpoint(path, state(2))
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes({"cut": data[:500], "flip": data, "empty": b""}[damage])
    assert load_checkpoint(path)["step"] == 1
    assert "Using the previous one" in caplog.text


def test_two_damaged_files_are_an_error_that_names_both(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    for step in (1, 2):
        save_checkpoint(path, state(step))
    for file in (path, previous_of(path)):
        file.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"last\.pt' is damaged.*last\.previous\.pt'"):
        load_checkpoint(path)


def test_a_full_disk_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, state(1))
    before = path.read_bytes()
    with small_files(1000), pytest.raises(CheckpointError, match=r"could not be written.*still there"):
        save_checkpoint(path, {"w": torch.zeros(10_000)})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["last.pt"]


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "last.pt", {"evil": print})
    with pytest.raises(CheckpointError, match="other Python objects than tensors") as caught:
        load_checkpoint(tmp_path / "last.pt")
    assert "weights_only" not in str(caught.value)


def test_a_first_checkpoint_that_does_not_fit_promises_no_earlier_one(tmp_path: Path) -> None:
    with small_files(1000), pytest.raises(CheckpointError, match=r"last\.pt' could not be.*the first one") as caught:
        save_checkpoint(tmp_path / "last.pt", {"w": torch.zeros(10_000)})
    assert "still there" not in str(caught.value)
    assert not list(tmp_path.iterdir())
