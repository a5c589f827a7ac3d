import io
import logging
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from boxwright.core.errors import UsageError
from boxwright.core.log import Level, configure, get_logger


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored_logger() -> Iterator[None]:
    logger = logging.getLogger("boxwright")
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


def say_everything() -> None:
    logger = get_logger("test")
    logger.debug("a detail")
    logger.info("some progress")
    logger.warning("a warning")
    logger.error("an error")


def test_loggers_stay_below_boxwright():
    assert get_logger().name == "boxwright"
    assert get_logger("boxwright").name == "boxwright"
    assert get_logger("train").name == "boxwright.train"
    assert get_logger("boxwright.core.log").name == "boxwright.core.log"
    assert get_logger("boxwrighted").name == "boxwright.boxwrighted"


def test_lines_go_to_stderr_and_leave_stdout_to_results(capsys: pytest.CaptureFixture[str]):
    configure()
    get_logger("train").info("epoch 1")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "INFO epoch 1\n"


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("quiet", ["a warning", "an error"]),
        ("normal", ["some progress", "a warning", "an error"]),
        ("verbose", ["a detail", "some progress", "a warning", "an error"]),
    ],
)
def test_the_level_decides_what_is_shown(level: Level, shown: list[str]):
    stream = io.StringIO()
    configure(level, stream=stream)
    say_everything()
    assert [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()] == shown


def test_debug_names_the_place_of_each_line():
    stream = io.StringIO()
    configure("debug", stream=stream)
    say_everything()
    assert stream.getvalue().count("boxwright.test:") == 4


def test_configuring_twice_does_not_double_the_lines():
    first, second = io.StringIO(), io.StringIO()
    configure(stream=first)
    configure("quiet", stream=second)
    say_everything()
    assert first.getvalue() == ""
    assert second.getvalue() == "WARNING a warning\nERROR an error\n"


def test_the_handlers_of_others_are_left_alone():
    theirs = logging.StreamHandler(io.StringIO())
    logging.getLogger("boxwright").addHandler(theirs)
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    configure(stream=io.StringIO())
    configure(stream=io.StringIO())
    assert theirs in logging.getLogger("boxwright").handlers
    assert (list(root.handlers), root.level) == before


def test_a_terminal_gets_rich_lines_and_brackets_survive():
    stream = Terminal()
    configure(stream=stream)
    get_logger().warning("classes [cat] and [/dog]")
    text = stream.getvalue()
    assert "WARNING" in text
    assert "[cat] and [/dog]" in "".join(part.split("m", 1)[-1] for part in text.split("\x1b["))


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_names_can_not_write_to_the_terminal(kind: type[io.StringIO]):
    stream = kind()
    configure(stream=stream)
    get_logger().warning("%s is cut off", "\x1b]0;title\x07.jpg")
    plain = re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue())  # without rich's own colours
    assert "\\x1b]0;title\\x07.jpg is cut off" in plain
    assert "\x1b" not in plain


def test_a_closed_stderr_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stderr", None)
    configure()
    get_logger().warning("to nobody")


def test_an_unknown_level_is_refused():
    with pytest.raises(UsageError, match="Did you mean 'verbose'"):
        configure("verbos")  # type: ignore[arg-type]


def test_neither_the_import_nor_plain_lines_load_rich():
    code = (
        "import logging, sys; before = list(logging.getLogger().handlers)\n"
        "from boxwright.core.log import configure, get_logger\n"
        "assert not logging.getLogger('boxwright').handlers\n"
        "configure(); get_logger().info('plain')\n"
        "assert logging.getLogger().handlers == before\n"
        "print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("False\n", "INFO plain\n")
