"""Code in a model's files runs only if this user made it on this machine, or trusts it."""

import json
import os
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from boxwright.core.errors import CheckpointError
from boxwright.optimize.optimizer import InferenceOptimizer
from boxwright.runtimes.artifact import open_graph, write_artifact
from boxwright.runtimes.base import Choice, Tuning
from boxwright.runtimes.instances import to_multi_instance
from boxwright.runtimes.source import Source
from boxwright.runtimes.trust import MACHINE_CODE, check_files, hash_code, hash_file, is_made_here, record
from boxwright.tasks.batch.worker import ModelFiles
from boxwright.tasks.models import open_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trust") / "art"
    write_artifact(Source.of(nn.Linear(3, 2), (torch.ones(2, 3),)), Choice(runtime="jit"), folder)
    return folder


@pytest.fixture
def _another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_what_was_made_here_runs_also_where_it_was_copied_to(written: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(written, tmp_path / "copy"))
    open_graph(copied).close()


@pytest.mark.usefixtures("_another_user")
def test_what_was_made_elsewhere_needs_a_word(written: Path) -> None:
    for load in (open_graph, InferenceOptimizer.load, lambda folder: to_multi_instance(folder, 1)):
        with pytest.raises(CheckpointError, match=r"holds a TorchScript program.*--trust.*trust=True"):
            load(written)
    open_graph(written, trust=True).close()
    InferenceOptimizer.load(written, trust=True).close()


@pytest.mark.usefixtures("_another_user")
def test_the_instances_of_a_trusted_model_trust_it(written: Path) -> None:
    tuning = Tuning(threads=1, cpus=((min(os.sched_getaffinity(0)),),))
    with pytest.raises(CheckpointError, match="--trust"):
        open_graph(written, tuning)
    with closing(open_graph(written, tuning, trust=True)) as graph:
        assert graph.run([np.ones((2, 3), np.float32)])[0].shape == (2, 2)


@pytest.mark.usefixtures("_another_user")
def test_plain_data_needs_no_word(tmp_path: Path) -> None:
    write_artifact(Source.of(nn.Linear(3, 2), (torch.ones(2, 3),)), Choice(runtime="eager"), tmp_path / "art")
    assert not (tmp_path / "data").exists()
    open_graph(tmp_path / "art").close()


@pytest.mark.usefixtures("_another_user")
def test_only_the_very_content_is_known(tmp_path: Path) -> None:
    files = {MACHINE_CODE: "1" * 64, "golden.npz": "2" * 64}
    with pytest.raises(CheckpointError, match="machine code"):
        check_files(tmp_path, files)
    record("1" * 64)
    check_files(tmp_path, files)
    with pytest.raises(CheckpointError, match="machine code"):
        check_files(tmp_path, files | {MACHINE_CODE: "3" * 64})


@pytest.mark.usefixtures("_another_user")
@pytest.mark.parametrize("digest", ["", ".", "..", "../made-here", "1" * 64 + "/..", "A" * 64])
def test_a_digest_is_never_a_path_in_the_store(tmp_path: Path, digest: str) -> None:
    record("1" * 64)
    with pytest.raises(CheckpointError, match="machine code"):
        check_files(tmp_path, {MACHINE_CODE: digest})


@pytest.mark.usefixtures("_another_user")
def test_machine_code_in_a_folder_is_code_too(tmp_path: Path) -> None:
    """Torch loads an unpacked package as well as a packed one."""
    folder = tmp_path / "art"
    write_artifact(Source.of(nn.Linear(3, 2), (torch.ones(2, 3),)), Choice(runtime="eager"), folder)
    code = folder / MACHINE_CODE / "data" / "aotinductor" / "model" / "x.wrapper.so"
    code.parent.mkdir(parents=True)
    code.write_bytes(b"machine code")
    description = json.loads((folder / "artifact.json").read_text())
    description["choice"]["runtime"] = "compile"
    description["files"][str(code.relative_to(folder))] = hash_file(code)
    (folder / "artifact.json").write_text(json.dumps(description))
    batch_model = ModelFiles.read(folder)
    for load in (lambda: open_graph(folder), lambda: InferenceOptimizer.load(folder), batch_model.check_trust):
        with pytest.raises(CheckpointError, match=r"machine code.*--trust"):
            load()
    assert not is_made_here(folder)


def test_names_in_other_letters_are_code_where_a_file_system_takes_them_for_the_same(tmp_path: Path) -> None:
    for name in ("Model.PT2", "model.tſ", "Custom_Program.JSON/part"):
        with pytest.raises(CheckpointError, match="--trust"):
            check_files(tmp_path, {name: "0" * 64})


@pytest.mark.usefixtures("_another_user")
def test_the_store_is_private_and_one_that_others_can_write_to_says_nothing(tmp_path: Path) -> None:
    record("1" * 64)
    (folder,) = (tmp_path / "data" / "boxwright").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(CheckpointError, match="machine code"):
        check_files(tmp_path, {MACHINE_CODE: "1" * 64})


def test_without_a_home_nothing_is_remembered_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    record("1" * 64)
    with pytest.raises(CheckpointError, match="machine code"):
        check_files(tmp_path, {MACHINE_CODE: "1" * 64})
    model = InferenceOptimizer.trace(nn.Linear(3, 2), torch.ones(2, 3), "jit")
    assert model(torch.ones(2, 3)).shape == (2, 2)


@pytest.mark.usefixtures("_another_user")
def test_an_engine_of_a_gpu_is_code_too(tmp_path: Path) -> None:
    path = tmp_path / "model.trt.onnx"
    path.write_bytes(b"engine")
    with pytest.raises(CheckpointError, match=r"machine code.*--trust"):
        open_model(path)
    record(hash_file(path))
    check_files(tmp_path, hash_code(path))
