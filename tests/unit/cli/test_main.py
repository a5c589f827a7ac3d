import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fixtures import Command

from boxwright.cli import VERBS, build_parser
from boxwright.core.errors import (
    BoxwrightError,
    BudgetError,
    CheckpointError,
    ConversionError,
    DataError,
    MissingDependencyError,
    UsageError,
)


def _commands(parser: argparse.ArgumentParser, *words: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command, also where a verb has verbs of its own."""
    below = [a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for verb, sub in below[0].items() if below else ():
        yield from _commands(sub, *words, verb)
    if not below:
        yield words


COMMANDS = list(_commands(build_parser()))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_the_same_output_options(boxwright: Command, words: tuple[str, ...]) -> None:
    done = boxwright(*words, "--help")
    assert done.code == 0
    for option in ("--json", "--verbose", "--quiet", "--debug"):
        assert option in done.out


def test_every_verb_is_a_command() -> None:
    assert {words[0] for words in COMMANDS} == set(VERBS)


def test_the_version_is_printed(boxwright: Command) -> None:
    done = boxwright("--version")
    assert done.code == 0
    assert done.out.startswith("boxwright 0.")


@pytest.mark.parametrize("words", [(), ("predct",), ("predict",), ("eval", "x.onnx"), ("info", "x", "--wat")])
def test_a_command_line_that_makes_no_sense_is_a_usage_error(boxwright: Command, words: tuple[str, ...]) -> None:
    done = boxwright(*words)
    assert done.code == 2
    assert done.out == ""
    assert "usage" in done.err.lower()


def test_an_unknown_flag_is_named_without_the_settings_behind_it(boxwright: Command) -> None:
    done = boxwright("train", "--data", "set", "steps", "2", "--wat", "3", "--who=4", "output_dir", "out", "x", "-1")
    assert done.code == 2
    assert done.err.strip().endswith("unrecognized arguments: --wat --who=4")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BoxwrightError("it failed"), 1),
        (MissingDependencyError("it is missing"), 1),
        (UsageError("not so"), 2),
        (DataError("no data"), 3),
        (CheckpointError("no model"), 4),
        (ConversionError("no export"), 5),
        (BudgetError("too much lost"), 6),
        (PermissionError(13, "Permission denied"), 1),
    ],
)
def test_an_error_is_one_sentence_and_its_own_exit_code(
    boxwright: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def fail(_: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr("boxwright.cli.info.run", fail)
    done = boxwright("info", "model")
    assert done.code == code
    assert done.out == ""
    assert done.err == f"{type(error).__name__}: {error}\n"
    debug = boxwright("info", "model", "--debug")
    assert debug.code == code
    assert "Traceback" in debug.err


def test_ctrl_c_ends_without_a_traceback(boxwright: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("boxwright.cli.info.run", interrupt)
    done = boxwright("info", "model")
    assert (done.code, done.out, done.err) == (130, "", "Stopped.\n")


def test_info_describes_a_file_as_text_and_as_json(boxwright: Command, toy_onnx: Path) -> None:
    text = boxwright("info", toy_onnx)
    assert text.code == 0
    assert "3: red, green, blue" in text.out
    values = json.loads(boxwright("info", toy_onnx, "--json").out)
    assert (values["kind"], values["num_classes"], values["size_hw"]) == ("onnx", 3, [64, 64])


def test_info_of_a_missing_model_is_a_model_error(boxwright: Command) -> None:
    done = boxwright("info", "missing.pth")
    assert done.code == 4
    assert done.err == "CheckpointError: There is no model file at 'missing.pth'. Check the path.\n"


def test_doctor_prints_one_json_object(boxwright: Command) -> None:
    done = boxwright("doctor", "--json")
    assert done.code == 0
    assert isinstance(json.loads(done.out), dict)


def test_the_defaults_are_the_documented_ones() -> None:
    parser = build_parser()
    predict = parser.parse_args(["predict", "m", "a.jpg"])
    score = parser.parse_args(["eval", "m", "--data", "d"])
    assert (predict.conf, predict.nms, predict.batch, predict.save) == (0.25, 0.45, 1, ["images"])
    assert (score.conf, score.nms, score.batch) == (0.001, 0.65, 8)
