"""Fixtures for tests of the tasks and of the command line."""

import io
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from boxwright.cli import main


@dataclass(frozen=True)
class Finished:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


Command = Callable[..., Finished]


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """Let torch compute with one thread: on a busy machine, several wait for each other many times as long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A made-up device in place of the one of its name (see `support.pretend_device`)."""
    from support.pretend_device import NAME, PretendDevice  # here, as torch above

    from boxwright.core import catalogue

    for name, value in (("captured", []), ("waits", []), ("full_above", 1000)):
        monkeypatch.setattr(PretendDevice, name, value, raising=False)
    devices = catalogue.CATALOGUE["device"] | {NAME: catalogue.Entry("support.pretend_device:PretendDevice")}
    monkeypatch.setitem(catalogue.CATALOGUE, "device", devices)
    return PretendDevice()


@pytest.fixture
def toy_onnx(tmp_path: Path) -> Path:
    """The toy detector as an ONNX file that describes itself."""
    from support.toy import save_toy_onnx, toy_spec  # here, so that other tests don't wait for onnx

    return save_toy_onnx(tmp_path / "models" / "toy.onnx", spec=toy_spec())


@pytest.fixture
def boxwright(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Run a command in this process, in an empty folder of its own: `boxwright("predict", model, image)`."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object, stdin: bytes = b"") -> Finished:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # argparse ends the program itself
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return Finished(code, out, err)

    logger = logging.getLogger("boxwright")
    before = (list(logger.handlers), logger.level)
    yield run
    logger.handlers, level = before
    logger.setLevel(level)
