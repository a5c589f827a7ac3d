import io
import os
import sys
from collections.abc import Callable, Iterator

import pytest

from boxwright.launchers.output import Relay, write


class Pipe:
    """A relay and the worker's end of its pipe."""

    def __init__(self, prefix: str) -> None:
        reader, self.writer = os.pipe()
        os.set_blocking(reader, False)
        self.relay = Relay(reader, "stdout", prefix)

    def send(self, data: bytes) -> None:
        os.write(self.writer, data)
        while self.relay.pump():
            pass


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    yield from open_pipe("[1] ")


@pytest.fixture
def plain() -> Iterator[Pipe]:
    yield from open_pipe("")


def open_pipe(prefix: str) -> Iterator[Pipe]:
    opened = Pipe(prefix)
    yield opened
    os.close(opened.relay.fd)
    if opened.writer >= 0:
        os.close(opened.writer)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """What has come out since it was last asked."""
    return lambda: capsys.readouterr().out


def test_whole_lines_come_out_behind_the_prefix(pipe: Pipe, shown: Callable[[], str]):
    pipe.send(b"one\ntwo\r\nthr")
    assert shown() == "[1] one\n[1] two\r\n"

    pipe.send(b"ee\n\n")
    assert shown() == "[1] three\n[1] \n"


def test_the_last_line_needs_no_end(pipe: Pipe, shown: Callable[[], str]):
    pipe.send(b"one\ntwo")
    pipe.relay.finish()

    assert shown() == "[1] one\n[1] two\n"


def test_a_progress_bar_moves_without_line_ends(pipe: Pipe, shown: Callable[[], str]):
    pipe.send(b"\r10 %\r20 %\r")
    assert shown() == "[1] 10 %\r"

    pipe.send(b"\n")
    assert shown() == "[1] 20 %\r\n"


def test_bytes_that_are_no_text_are_replaced(pipe: Pipe, plain: Pipe, shown: Callable[[], str]):
    for each in (pipe, plain):
        each.send(b"a\xffb\n")

    assert shown() == "[1] a\ufffdb\na\ufffdb\n"


def test_a_letter_cut_in_two_is_put_together(pipe: Pipe, plain: Pipe, shown: Callable[[], str]):
    for each in (pipe, plain):
        each.send("ö\n".encode()[:1])
        each.send("ö\n".encode()[1:])

    assert shown() == "[1] ö\nö\n"


def test_without_a_prefix_everything_comes_out_at_once(plain: Pipe, shown: Callable[[], str]):
    plain.send(b"no end yet")
    assert shown() == "no end yet"

    plain.send(b"\xc3")
    plain.relay.finish()
    assert shown() == "\ufffd"


def test_a_line_without_end_does_not_fill_the_memory(pipe: Pipe, shown: Callable[[], str]):
    for _ in range(40):
        pipe.send(b"x" * 10_000)

    assert 400_000 - shown().count("x") <= 1 << 16


def test_the_end_and_a_pause_are_told_apart(pipe: Pipe):
    assert pipe.relay.pump() is None
    os.close(pipe.writer)
    pipe.writer = -1
    assert pipe.relay.pump() == 0


def test_a_stream_with_few_letters_gets_what_it_can_show(monkeypatch: pytest.MonkeyPatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))

    write("stdout", "2 × 3\n")

    assert raw.getvalue() == b"2 ? 3\n"


def test_a_writer_of_the_users_own_needs_no_more_than_write(monkeypatch: pytest.MonkeyPatch):
    class Writer:
        text = ""

        def write(self, text: str) -> None:
            self.text += text

    writer = Writer()
    monkeypatch.setattr(sys, "stdout", writer)
    write("stdout", "kept")
    monkeypatch.setattr(sys, "stdout", None)
    write("stdout", "lost")

    assert writer.text == "kept"
