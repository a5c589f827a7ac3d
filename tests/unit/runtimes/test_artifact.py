import json
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from support.networks import lively_nano

from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.spec import Spec
from boxwright.runtimes.artifact import is_artifact, read_artifact, write_artifact
from boxwright.runtimes.base import Choice
from boxwright.runtimes.source import Source
from boxwright.tasks.models import ModelOptions, open_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")
SPEC = Spec(model="yolox_nano", names=("a", "b", "c"), size_hw=(64, 64), category_ids=(1, 5, 7))


@pytest.fixture(scope="module")
def source() -> Source:
    return Source.of(lively_nano(), (torch.zeros(1, 3, 64, 64),))


@pytest.fixture(scope="module")
def written(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "art"
    write_artifact(source, Choice(runtime="eager"), folder, spec=SPEC)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(written, tmp_path / "art"))


def _change(folder: Path, **values: object) -> None:
    file = folder / "artifact.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_the_description_says_what_the_folder_holds(folder: Path) -> None:
    assert is_artifact(folder)
    artifact = read_artifact(folder)
    assert (artifact.choice, artifact.spec) == (Choice(runtime="eager"), SPEC)
    assert list(artifact.files) == ["golden.npz", "program.pt2"]
    assert {"boxwright", "numpy", "torch"} <= set(artifact.versions)
    assert artifact.recipe["folded"] > 0
    assert all(text[0].isdigit() for package, text in artifact.versions.items() if package != "boxwright")


def test_every_file_may_be_read_by_whoever_may_read_the_description(folder: Path) -> None:
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert len(modes) == 1


def test_a_folder_that_is_in_use_is_not_written_to(source: Source, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for taken in (folder, tmp_path / "file"):
        with pytest.raises(UsageError, match="not an empty folder"):
            write_artifact(source, Choice(runtime="eager"), taken, spec=SPEC)


def test_an_unknown_runtime_is_refused_before_anything_is_written(source: Source, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean 'eager'"):
        write_artifact(source, Choice(runtime="eagre"), tmp_path / "art", spec=SPEC)
    assert not (tmp_path / "art").exists()


@pytest.mark.parametrize(
    "values",
    [
        {"spec": []},
        {"spec": {}},
        {"files": 3},
        {"choice": {"runtime": "eager", "precision": "33", "channels_last": False, "mode": ""}},
        {"choice": {}},
        {"signature": {}},
        {"format": "new"},
        {"spec": {"names": [], "size_hw": [64, 64]}},
    ],
)
def test_a_description_that_makes_no_sense_is_refused(folder: Path, values: dict[str, object]) -> None:
    _change(folder, **values)
    with pytest.raises(CheckpointError, match=r"artifact\.json' can't be read"):
        read_artifact(folder)


def test_a_description_that_is_no_json_is_refused(folder: Path) -> None:
    for text in ("{", "[]", ""):
        (folder / "artifact.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"artifact\.json' can't be read"):
            read_artifact(folder)


def test_an_artifact_opens_as_a_model_and_takes_new_names(folder: Path) -> None:
    session = open_model(folder, ModelOptions(names=("x", "y", "z")))
    assert session.spec.names == ("x", "y", "z")
    assert session(np.zeros((1, 3, 64, 64), np.float32)).shape == (1, 84, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ModelOptions(size_hw=(96, 96)), r"input size is \(64, 64\) and can't be changed"),
        (ModelOptions(output="scores"), "--output-form 'scores' does not apply"),
        (ModelOptions(activation="relu"), "--act 'relu' does not apply"),
        (ModelOptions(names=("x",)), "1 class names were given, but the model has 3"),
    ],
)
def test_an_option_that_contradicts_the_artifact_is_refused(folder: Path, options: ModelOptions, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_model(folder, options)
