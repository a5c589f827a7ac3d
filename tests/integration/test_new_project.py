"""`boxwright new` makes a folder whose README can be followed."""

import json
import re
import shlex
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from support.fixtures import Command
from support.shared import shared_path

from boxwright.cli import build_parser
from boxwright.tasks.weights.get import add_weights

FIRST = ("data", "weights", "train", "eval", "predict")


def _commands(readme: str) -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", readme, re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]


def test_the_commands_of_the_readme_work(boxwright: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    made = boxwright("new", "my project", "--names", "cat,dog", "--json")
    assert made.code == 0, made.err
    assert [Path(name).name for name in json.loads(made.out)] == ["README.md", "train.yaml", ".gitignore", "data.yaml"]
    project = tmp_path / "my project"
    monkeypatch.chdir(project)
    random = np.random.default_rng(0)
    for part, count in (("train", 4), ("val", 2)):
        for i in range(count):
            cv2.imwrite(f"data/images/{part}/{i}.png", random.integers(0, 255, (64, 64, 3), np.uint8))
            Path(f"data/labels/{part}/{i}.txt").write_text(f"{i % 2} 0.5 0.5 0.4 0.4\n")
    settings = Path("train.yaml").read_text()
    small = settings.replace("max_epoch: 100\nbatch: 16", "max_epoch: 1\nbatch: 2\nsize_hw: [64, 64]")
    assert small != settings
    Path("train.yaml").write_text(small)
    add_weights(shared_path("weights/yolox_nano/yolox_nano.pth"), unofficial=True)  # `get` finds it there
    commands = _commands(Path("README.md").read_text())
    assert {words[0] for words in commands} == {*FIRST, "optimize", "serve"}
    for words in commands:
        build_parser().parse_args(words)
        if words[0] in FIRST and "runs/fast/best" not in words:
            done = boxwright(*words)
            assert done.code == 0, (words, done.err)
    assert len(list(Path("runs/pictures").glob("*.jpg"))) == 2


def test_a_set_that_is_there_is_named_instead(boxwright: Command, tmp_path: Path) -> None:
    (tmp_path / "my set").mkdir()
    assert boxwright("new", "project", "--data", "my set", "-n", "yolox-s").code == 0
    assert not (tmp_path / "project" / "data").exists()
    assert f"data: {tmp_path}/my set\n" in (tmp_path / "project" / "train.yaml").read_text()
    commands = _commands((tmp_path / "project" / "README.md").read_text())
    assert commands[0] == ["data", "check", str(tmp_path / "my set")]
    assert ["weights", "get", "yolox_s", "--format", "pth"] in commands


def test_a_long_path_of_a_set_stays_whole(boxwright: Command, tmp_path: Path) -> None:
    data = tmp_path / "pictures of all the streets that we have seen" / "and of the café: in summer # and in winter"
    data.mkdir(parents=True)
    assert boxwright("new", "project", "--data", str(data)).code == 0
    assert yaml.safe_load((tmp_path / "project" / "train.yaml").read_text())["data"] == str(data)


def test_a_folder_that_holds_something_and_names_for_a_set_that_has_them_are_refused(
    boxwright: Command, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    assert "is not empty" in boxwright("new", "full").err
    assert boxwright("new", "p", "--data", "full", "--names", "cat").code == 2
    assert boxwright("new", "p", "--data", "nowhere").code == 3
    assert "Did you mean 'yolox_nano'" in boxwright("new", "p", "-n", "yolox_nan").err
    assert not (tmp_path / "p").exists()
