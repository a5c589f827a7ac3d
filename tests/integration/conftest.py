"""What several files of whole runs compare with, made once a test process."""

from pathlib import Path
from typing import Any

import pytest
from support.runs import resume_by_hand

from boxwright.data.synthetic import generate_scenes


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small labelled set."""
    folder = tmp_path_factory.mktemp("scenes") / "set"
    generate_scenes(folder, images=24, seed=0, size_hw=(96, 96), classes=("circle", "square"))
    return folder


@pytest.fixture(scope="session")
def by_hand(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last checkpoint of a run of this machine that died after its first evaluation and was resumed by hand."""
    return resume_by_hand(scenes, tmp_path_factory.mktemp("by_hand"))
