"""`--trust`: code in a model's files runs only if the user says so, or made it."""

import json
from pathlib import Path

import pytest
import torch
from support.fixtures import Command
from support.models import tiny_detector
from support.scenes import save_labelled_set, save_scene

from boxwright.core.spec import Spec
from boxwright.runtimes.artifact import write_artifact
from boxwright.runtimes.base import Choice
from boxwright.runtimes.source import Source

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli_trust") / "art"
    source = Source.of(tiny_detector(), (torch.zeros(1, 3, 64, 96),))
    spec = Spec(names=("red", "green", "blue"), size_hw=(64, 96))
    write_artifact(source, Choice(runtime="jit"), folder, spec=spec)
    return folder


def test_each_verb_refuses_code_of_another_user_and_says_what_to_do(
    boxwright: Command, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = save_scene(tmp_path / "a.png", ("red", 1, 1))
    data = save_labelled_set(tmp_path / "set", [[("red", 1, 1)]])
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for words in (
        ["predict", artifact, image, "--save"],
        ["eval", artifact, "--data", data],
        ["predict", artifact, data / "images", "--engine", "local", "--out", tmp_path / "out"],
    ):
        done = boxwright(*words)
        assert done.code == 4
        assert "--trust" in done.err
    done = boxwright("benchmark", artifact)
    assert done.code == 4
    assert "--trust" in done.out
    assert boxwright("info", artifact, "--json").code == 0  # nothing is loaded
    done = boxwright("predict", artifact, image, "--save", "--trust", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["source"] == str(image)
