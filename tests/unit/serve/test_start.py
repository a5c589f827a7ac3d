"""What `boxwright serve` says when it can't start."""

import socket
from pathlib import Path

import pytest
from support.fixtures import Command
from support.toy import save_toy_onnx, toy_spec

pytest.importorskip("uvicorn")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_toy_onnx(tmp_path / "toy.onnx", spec=toy_spec())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "There is no model to serve"),
        ("missing.onnx", "missing.onnx"),
        ("MODEL --host 0.0.0.0", "can be reached by other machines"),
        ("MODEL MODEL", "Two models are called 'toy'"),
        ("MODEL --workers 1 --hint latency", "Leave one of them out"),
        ("MODEL --workers 9999", "more than the"),
        ("MODEL --device cuda", "runs on the CPU"),
        ("MODEL --token short", "at least 16"),
        ("a+b=MODEL", "can't be a model's name"),
        ("MODEL --host nowhere.invalid --no-auth", "can't listen on 'nowhere.invalid'"),
    ],
)
def test_what_cannot_be_served_is_a_sentence(boxwright: Command, model: Path, words: str, sentence: str) -> None:
    done = boxwright("serve", "--port", "0", *words.replace("MODEL", str(model)).split())
    assert done.code in (2, 4)
    assert sentence in done.err
    assert done.out == ""


def test_a_taken_port_is_a_sentence(boxwright: Command, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = boxwright("serve", str(model), "--port", str(taken.getsockname()[1]))
    assert done.code == 2
    assert "Choose another --host or --port" in done.err
