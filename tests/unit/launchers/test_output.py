import io
import sys
from collections.abc import Callable

import pytest

from boxwright.launchers.output import Relay, write


@pytest.fixture
def relay() -> Relay:
    return Relay("stdout", "[1] ")


@pytest.fixture
def plain() -> Relay:
    return Relay("stdout", "")


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """What has come out since it was last asked."""
    return lambda: capsys.readouterr().out


def test_whole_lines_come_out_behind_the_prefix(relay: Relay, shown: Callable[[], str]):
    relay.feed(b"one\ntwo\r\nthr")
    assert shown() == "[1] one\n[1] two\r\n"

    relay.feed(b"ee\n\n")
    assert shown() == "[1] three\n[1] \n"


def test_the_last_line_needs_no_end(relay: Relay, shown: Callable[[], str]):
    relay.feed(b"one\ntwo")
    relay.feed(b"")

    assert shown() == "[1] one\n[1] two\n"


def test_a_progress_bar_moves_without_line_ends(relay: Relay, shown: Callable[[], str]):
    relay.feed(b"\r10 %\r20 %\r")
    assert shown() == "[1] 10 %\r"

    relay.feed(b"\n")
    assert shown() == "[1] 20 %\r\n"


def test_bytes_that_are_not_text_are_replaced(relay: Relay, plain: Relay, shown: Callable[[], str]):
    for each in (relay, plain):
        each.feed(b"a\xffb\n")

    assert shown() == "[1] a\ufffdb\na\ufffdb\n"


def test_a_letter_cut_in_two_is_put_together(relay: Relay, plain: Relay, shown: Callable[[], str]):
    for each in (relay, plain):
        each.feed("ö\n".encode()[:1])
        each.feed("ö\n".encode()[1:])

    assert shown() == "[1] ö\nö\n"


def test_without_a_prefix_everything_comes_out_at_once(plain: Relay, shown: Callable[[], str]):
    plain.feed(b"no end yet")
    assert shown() == "no end yet"

    plain.feed(b"\xc3")
    plain.feed(b"")
    assert shown() == "\ufffd"


def test_a_line_without_end_does_not_fill_the_memory(relay: Relay, shown: Callable[[], str]):
    for _ in range(40):
        relay.feed(b"x" * 10_000)

    assert 400_000 - shown().count("x") <= 1 << 16


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
