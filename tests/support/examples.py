"""Runs the examples of README and docs: Python blocks are executed, command lines are checked against the parsers."""

import re
import shlex
import tomllib
from pathlib import Path

import cv2
import numpy as np
import pytest
from support.shared import ROOT
from support.thirdparty import import_or_skip
from support.toy import save_toy_onnx
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

from boxwright.cli import build_parser


def check_commands(example: Example) -> None:
    """Fail on a command that Boxwright, the Makefile or the extras do not know."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    checked = 0
    for line in str(example.parsed).splitlines():
        for command in line.split("|"):
            match shlex.split(command, comments=True):
                case ["boxwright", *rest]:
                    args, unknown = build_parser().parse_known_args(rest)
                    assert not unknown or hasattr(args, "settings"), f"{command}: unknown {unknown}"
                case ["make", target]:
                    assert target in targets, f"{command}: the Makefile has no such target"
                case ["pip", "install", package, *_]:
                    assert set(re.findall(r"\w+", package.partition("[")[2])) <= extras, f"{command}: unknown extra"
                case ["python", script, *_]:
                    assert (ROOT / script).exists(), f"{command}: no such file"
                case _:
                    continue
            checked += 1
    assert checked, "no command was checked; other text needs a fence without a language"


@pytest.fixture(scope="session")
def example_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that the examples read."""
    folder = tmp_path_factory.mktemp("examples")
    images = np.random.default_rng(0).integers(0, 255, (3, 240, 320, 3), np.uint8)
    cv2.imwrite(str(folder / "street.jpg"), images[0])
    video = cv2.VideoWriter(str(folder / "film.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 5, (320, 240))
    for image in images:
        video.write(image)
    video.release()
    save_toy_onnx(folder / "yolox_nano.onnx")
    return folder


@pytest.fixture
def run_in_example_folder(
    request: pytest.FixtureRequest, example_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run an example in that folder, with the objects that it takes for granted."""
    monkeypatch.chdir(example_folder)
    for package in re.findall(
        r"^(?:import|from) (timm|transformers)\b", str(request.node.example.parsed), re.MULTILINE
    ):
        import_or_skip(package)
    namespace = request.node.example.namespace
    namespace.update({name: value for name, value in make_objects().items() if name not in namespace})


def make_objects() -> dict[str, object]:
    """Return a model, its data, a loss and a metric."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from boxwright import TorchNano

    class MyNano(TorchNano):
        def train(self, model: nn.Module) -> None:
            self.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))

    x = torch.rand(32, 8)
    loader = DataLoader(TensorDataset(x, (x.sum(1) > 4).long()), batch_size=8)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    return {
        "MyNano": MyNano,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": loader,
        "val_loader": loader,
        "images": x[:8],
        "loss_function": nn.functional.cross_entropy,
        "accuracy": lambda pred, target: (pred.argmax(1) == target).float(),
    }


_commands = CodeBlockParser(language="bash", evaluator=check_commands)
_pages = Sybil(
    parsers=[PythonCodeBlockParser(), _commands],
    path=str(ROOT),
    patterns=["README.md", "docs/*.md", "docs/*/*.md"],
    excludes=["docs/tutorials/*.md"],
    fixtures=["run_in_example_folder"],
)
# What a tutorial does is run as a notebook, by tests/integration/test_notebooks.py.
_tutorials = Sybil(parsers=[_commands], path=str(ROOT), patterns=["docs/tutorials/*.md"])
collect_examples = (_pages + _tutorials).pytest()
