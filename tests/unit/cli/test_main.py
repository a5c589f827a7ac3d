import argparse
import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.fixtures import Command

from boxwright.cli import VERBS, build_parser
from boxwright.cli.examples import EXAMPLES
from boxwright.cli.shells import read_commands
from boxwright.core.errors import (
    BoxwrightError,
    BudgetError,
    CheckpointError,
    ConversionError,
    DataError,
    MissingDependencyError,
    UsageError,
    WorkerError,
)

LINES = {line.words: line for line in read_commands(build_parser()) if not line.verbs}
COMMANDS = list(LINES)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_the_same_output_options(boxwright: Command, words: tuple[str, ...]) -> None:
    done = boxwright(*words, "--help")
    assert done.code == 0
    for option in ("--json", "--verbose", "--quiet", "--debug"):
        assert option in done.out


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_help_of_every_option_is_shown_whole(boxwright: Command, words: tuple[str, ...]) -> None:
    """The formatter takes words in brackets for markup and leaves them out."""
    shown = "".join(boxwright(*words, "--help").out.split())
    assert [option.help for option in LINES[words].options if "".join(option.help.split()) not in shown] == []


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_that_its_parser_takes(boxwright: Command, words: tuple[str, ...]) -> None:
    example = EXAMPLES[" ".join(words)]
    given = shlex.split(example)
    assert given[1 : 1 + len(words)] == list(words)
    args, rest = build_parser().parse_known_args(given[1:])
    assert not rest or hasattr(args, "settings")
    assert f"Example: {example}" in " ".join(boxwright(*words, "--help").out.split())


@pytest.mark.parametrize(("words", "example"), [((), "boxwright"), (("data",), "data"), (("weights",), "weights")])
def test_help_above_the_commands_has_an_example_too(boxwright: Command, words: tuple[str, ...], example: str) -> None:
    assert f"Example: {EXAMPLES[example]}" in " ".join(boxwright(*words, "--help").out.split())
    build_parser().parse_args(shlex.split(EXAMPLES[example])[1:])


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


def _fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(_: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr("boxwright.cli.info.run", fail)


def test_an_interrupt_that_native_code_makes_an_import_error_is_an_interrupt(
    boxwright: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ImportError("initialization failed")
    error.__cause__ = KeyboardInterrupt()
    _fail_with(monkeypatch, error)
    done = boxwright("info", "model")
    assert (done.code, done.err) == (130, "Stopped.\n")


@pytest.mark.parametrize("error", [ValueError("Invalid bounding box"), SystemExit(1)])  # OpenCV's and Ray's
def test_a_sigterm_that_native_code_makes_an_error_is_a_sigterm(
    boxwright: Command, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def draw(_: argparse.Namespace) -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
        except SystemExit:
            raise error from None
        return 0

    monkeypatch.setattr("boxwright.cli.info.run", draw)
    done = boxwright("info", "model")
    assert (done.code, done.err) == (143, "Stopped.\n")


def test_an_unexpected_error_is_one_line_that_names_a_file_with_the_traceback(
    boxwright: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    _fail_with(monkeypatch, KeyError("area"))
    done = boxwright("info", "model")
    assert (done.code, done.out, done.err.count("\n")) == (70, "", 1)
    assert done.err.startswith("Unexpected KeyError: 'area'.")
    log = re.search(r"traceback is in '(.*?)'", done.err)
    assert log is not None
    assert "Traceback (most recent call last)" in Path(log[1]).read_text()
    debug = boxwright("info", "model", "--debug")
    assert debug.code == 70
    assert "Traceback" in debug.err
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert "Run it again with --debug" in boxwright("info", "model").err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (MemoryError(), 1, "MemoryError: There is not enough memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9"), 1, "MemoryError: There is not"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "invalid start byte"), 3, "not valid utf-8"),
        (OSError(28, "No space left on device", "out/a.jpg"), 1, "OSError: No space left on device: 'out/a.jpg'\n"),
        (OSError(), 1, "OSError: the system gave no reason"),
        (RecursionError("too deep"), 70, "Unexpected RecursionError: too deep."),
        (ValueError("first\nsecond"), 70, "Unexpected ValueError: first. This"),
        (
            WorkerError("Worker 1 failed: KeyError: 'x'\n\nTraceback (most recent call last):\n  f()"),
            1,
            "KeyError: 'x' Its",
        ),
        (UsageError("no \x1b[31m colours"), 2, "no \\x1b[31m colours"),
    ],
)
def test_every_kind_of_error_is_one_line_without_a_traceback(
    boxwright: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, said: str
) -> None:
    _fail_with(monkeypatch, error)
    done = boxwright("info", "model")
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert said in done.err
    assert "Traceback" not in done.err


def test_sigterm_ends_a_command_as_ctrl_c_does(boxwright: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("boxwright.cli.info.run", lambda _: signal.raise_signal(signal.SIGTERM))
    done = boxwright("info", "model")
    assert (done.code, done.out, done.err) == (143, "", "Stopped.\n")
    assert signal.getsignal(signal.SIGTERM) == before


def test_names_can_not_write_to_the_terminal(boxwright: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def show(_: argparse.Namespace) -> int:
        print("class \x1b]0;title\x07", "and\ta tab")
        return 0

    monkeypatch.setattr("boxwright.cli.info.run", show)
    assert boxwright("info", "model").out == "class \\x1b]0;title\\x07 and\ta tab\n"


@pytest.mark.parametrize("streams", ["<&- 2>&-", ">&- 2>&-", "2>/dev/full"])
def test_streams_that_nobody_has_opened_do_not_matter(streams: str) -> None:
    command = f'"{sys.executable}" -m boxwright run --dry-run -- true {streams}'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (done.stdout != "") == (">&- " not in streams)


def test_a_full_stdout_is_an_error_in_one_line() -> None:
    command = f'"{sys.executable}" -m boxwright run --dry-run -- true >/dev/full'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "OSError: No space left on device: '<stdout>'\n")


def test_options_can_not_be_abbreviated(boxwright: Command) -> None:
    done = boxwright("eval", "m.onnx", "--data", "d", "--output", "raw")
    assert done.code == 2
    assert "unrecognized arguments: --output raw" in done.err
    assert boxwright("data", "check", "d", "--form", "coco").code == 2


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "m.onnx", ""),
        ("predict", "", "a.jpg"),
        ("predict", "m.onnx", "a.jpg", "--out", ""),
        ("eval", "m.onnx", "--data", ""),
        ("train", "--data", "d", "--out", ""),
        ("data", "check", ""),
    ],
)
def test_an_empty_path_is_not_the_current_folder(boxwright: Command, words: tuple[str, ...]) -> None:
    done = boxwright(*words)
    assert done.code == 2
    assert "is empty" in " ".join(done.err.split())


def test_a_run_to_resume_that_is_not_there_is_named(boxwright: Command, tmp_path: Path) -> None:
    done = boxwright("train", "--resume", "--out", "nosuchrun")
    assert done.code == 2
    assert "there is no folder 'nosuchrun'" in done.err
    assert not (tmp_path / "nosuchrun").exists()
    (tmp_path / "other").mkdir()
    assert "'other' holds no run" in boxwright("train", "--resume", "--out", "other").err


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
