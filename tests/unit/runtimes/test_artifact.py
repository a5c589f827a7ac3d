import json
import os
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from support.networks import lively_nano

from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.spec import Spec
from boxwright.runtimes.artifact import is_artifact, read_artifact, read_golden, write_artifact
from boxwright.runtimes.base import Choice
from boxwright.runtimes.source import Source
from boxwright.tasks.models import ModelOptions, open_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")
NPY = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (0,), }".ljust(117) + b"\n"
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
    assert list(artifact.files) == ["golden.npz", "program.json", "weights.safetensors"]
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
        {"spec": {"names": ["a"], "size_hw": [64, 64], "strides": [0]}},
        {"spec": {"names": ["a"], "size_hw": [float("inf"), 64]}},
        {"choice": 3},
        {"distance": "far"},
        {"signature": {"inputs": [{"name": "x", "dtype": "O", "shape": [1]}], "outputs": [], "call": {}, "result": {}}},
        {"signature": {"inputs": [], "outputs": [], "call": None, "result": None}},
    ],
)
def test_a_description_that_makes_no_sense_is_refused(folder: Path, values: dict[str, object]) -> None:
    _change(folder, **values)
    with pytest.raises(CheckpointError, match=r"artifact\.json' can't be read"):
        read_artifact(folder)


def test_a_description_that_is_no_json_is_refused(folder: Path) -> None:
    for text in ("{", "[]", "", "[" * 100_000, '{"format": 2, "a": ' + "[" * 100_000):
        (folder / "artifact.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"artifact\.json' can't be read"):
            read_artifact(folder)


def test_a_description_of_endless_length_is_refused(folder: Path) -> None:
    os.truncate(folder / "artifact.json", 1 << 30)
    with pytest.raises(CheckpointError, match="it has 1073741824 bytes"):
        read_artifact(folder)


@pytest.mark.parametrize("name", ["more.bin", "model.pt2", ".hidden", "deep/er/file"])
def test_a_file_that_is_not_listed_is_refused(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("more")
    with pytest.raises(CheckpointError, match=f"holds the file '{name}'"):
        read_artifact(folder)


def test_a_draft_of_the_description_that_a_killed_program_left_does_not_matter(folder: Path) -> None:
    (folder / ".artifact.4711.tmp.json").touch()
    read_artifact(folder)


def test_a_list_without_files_is_not_believed(folder: Path) -> None:
    _change(folder, files={})
    with pytest.raises(CheckpointError, match="which it was not written with"):
        read_artifact(folder)


@pytest.mark.parametrize("name", ["artifact.json", "golden.npz"])
def test_a_link_that_leads_out_of_the_folder_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(CheckpointError, match=rf"{name}.* a link .* cp -rL"):
        read_artifact(folder)


@pytest.mark.parametrize("inside", [False, True])
def test_a_link_to_a_folder_is_refused_because_its_files_are_not_listed(
    folder: Path, tmp_path: Path, inside: bool
) -> None:
    store = (folder if inside else tmp_path) / "store"
    store.mkdir()
    (folder / "model.pt2").symlink_to(store)
    with pytest.raises(CheckpointError, match=r"'model\.pt2' .* is not a regular file"):
        read_artifact(folder)


def test_links_inside_the_folder_are_followed(folder: Path) -> None:
    (folder / "store").mkdir()
    (folder / "golden.npz").rename(folder / "store" / "golden.npz")
    (folder / "golden.npz").symlink_to("store/golden.npz")
    digest = json.loads((folder / "artifact.json").read_text())["files"]
    _change(folder, files=digest | {"store/golden.npz": digest["golden.npz"]})
    read_artifact(folder)


def test_a_pipe_in_the_folder_is_refused_not_read(folder: Path) -> None:
    (folder / "golden.npz").unlink()
    os.mkfifo(folder / "golden.npz")
    with pytest.raises(CheckpointError, match="is not a regular file"):
        read_artifact(folder)


def test_golden_arrays_that_would_fill_the_memory_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(array.nbytes for arrays in read_golden(folder) for array in arrays)
    monkeypatch.setattr("boxwright.runtimes.artifact._MOST_GOLDEN", size)  # the headers make it larger
    with pytest.raises(CheckpointError, match=r"golden\.npz' can't be read.* bytes of memory"):
        read_golden(folder)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 cut off", b"\x93NUMPY\x01\x00", NPY])
def test_golden_arrays_that_are_none_are_refused(folder: Path, data: bytes) -> None:
    (folder / "golden.npz").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"golden\.npz' can't be read"):
        read_golden(folder)


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
