"""What several files of whole runs compare with, made once."""

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from support.runs import resume_by_hand

from boxwright.accel.checkpoint import load_checkpoint
from boxwright.data.synthetic import generate_scenes


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small labelled set."""
    folder = tmp_path_factory.mktemp("scenes") / "set"
    generate_scenes(folder, images=24, seed=0, size_hw=(96, 96), classes=("circle", "square"))
    return folder


@pytest.fixture(scope="session")
def by_hand(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last checkpoint of a run of this machine that died after its first evaluation and was resumed by hand.

    Several test processes share one: it takes a while.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "by_hand"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            folder.mkdir()
            resume_by_hand(scenes, folder)
            (folder / "whole").touch()
    return load_checkpoint(folder / "weights" / "last.pt")
