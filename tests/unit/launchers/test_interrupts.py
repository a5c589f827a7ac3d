import signal
import threading
from collections.abc import Iterator

import pytest

from boxwright.launchers.interrupts import Interrupts

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@pytest.fixture(autouse=True)
def handlers() -> Iterator[dict[int, list[int]]]:
    """The program's own handlers, and what they got."""
    got: dict[int, list[int]] = {signal.SIGINT: [], signal.SIGTERM: []}
    before = {number: signal.signal(number, lambda n, _: got[n].append(n)) for number in got}
    yield got
    for number, handler in before.items():
        signal.signal(number, handler)


@BOTH
def test_the_first_signal_is_noted_and_the_second_acts_at_once(number: int, handlers: dict[int, list[int]]):
    calls: list[str] = []
    with Interrupts() as interrupts:
        interrupts.at_once = lambda: calls.append("now")

        signal.raise_signal(number)
        assert (interrupts.seen, calls) == (number, [])
        signal.raise_signal(number)
        assert (interrupts.seen, calls) == (number, ["now"])

    assert handlers[number] == []


@BOTH
def test_the_programs_own_handlers_are_back_afterwards(number: int, handlers: dict[int, list[int]]):
    with Interrupts():
        pass
    signal.raise_signal(number)

    assert handlers[number] == [number]


@pytest.mark.parametrize(("number", "end"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_noted_signal_is_delivered_and_ends_the_run(
    number: int, end: type[BaseException], handlers: dict[int, list[int]]
):
    with Interrupts() as interrupts:
        signal.raise_signal(number)

    with pytest.raises(end):
        interrupts.deliver()
    assert handlers[number] == [number]


def test_a_signal_that_the_program_ignores_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)

    assert interrupts.seen is None


def test_outside_the_main_thread_nothing_is_touched():
    during = []

    def run() -> None:
        with Interrupts():
            during.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

    assert during == [before]
