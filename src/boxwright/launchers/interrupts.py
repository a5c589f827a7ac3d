"""Ctrl-C and SIGTERM while workers run: noted, obeyed, and handed on to the program when the workers are gone."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Notes the first SIGINT or SIGTERM instead of raising it; the second one calls `at_once`.

    Nothing is caught where Python does not let us (outside the main thread) or where the program ignores the signal.

    Attributes:
        seen: the signal that came; None if none has.
        at_once: what ends all workers without delay.
    """

    def __init__(self) -> None:
        self.seen: int | None = None
        self.at_once: Callable[[], None] = lambda: None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                previous = signal.getsignal(number)
                if previous not in (None, signal.SIG_IGN):  # None: not set by Python, so it couldn't be put back
                    self._previous[number] = previous
                    signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  the signature of a handler
        if self.seen is None:
            self.seen = number
        else:
            self.at_once()  # here and now: the loop may be waiting for a terminal that does not read

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
