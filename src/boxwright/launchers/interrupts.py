"""Ctrl-C and SIGTERM while workers run: noted, acted on, and delivered to the program once the workers have ended."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """Unwinds a launch after Ctrl-C or SIGTERM; `run_interruptible` then delivers the signal."""


class Interrupts:
    """Notes the first SIGINT or SIGTERM instead of raising it; the second one calls `at_once`.

    Nothing is caught where Python does not allow it (outside the main thread) or if the program ignores the signal.

    Attributes:
        seen: the signal that came; None if none has.
        at_once: kills all workers.
    """

    def __init__(self) -> None:
        self.seen: int | None = None
        self.at_once: Callable[[], None] = lambda: None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                previous = signal.getsignal(number)
                if previous not in (None, signal.SIG_IGN):  # None: not set by Python, which could not restore it
                    self._previous[number] = previous
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  the signature of a handler
        if self.seen is None:
            self.seen = number
        else:
            self.at_once()  # in the handler: the loop may be waiting for a terminal that does not read

    def check(self) -> None:
        """Raise `Interrupted` if a signal came."""
        if self.seen is not None:
            raise Interrupted

    def deliver(self) -> NoReturn:
        """Give the noted signal to the program's own handler, as if it had just come.

        Raises:
            KeyboardInterrupt: it was SIGINT, and no handler ended the program.
            SystemExit: it was SIGTERM, likewise.
        """
        number = self.seen or signal.SIGINT
        signal.raise_signal(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


def run_interruptible(run: Callable[[Interrupts], T]) -> T:
    """Return `run(interrupts)`; a signal that came meanwhile is delivered to the program afterwards."""
    with Interrupts() as interrupts, suppress(Interrupted):
        result = run(interrupts)
    if interrupts.seen is not None:
        interrupts.deliver()
    return result


@contextmanager
def keep_handler(number: int) -> Iterator[None]:
    """Restore the program's handler of a signal afterwards, if this is the main thread."""
    before = signal.getsignal(number)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(number, before)
