"""SIGTERM as an exception: the program closes its files and removes its drafts before it ends."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""The exit code after SIGTERM, as a shell reports it."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Turn SIGTERM into `SystemExit(143)` where it would end this process at once.

    Native code that is interrupted by it may report an error of its own instead, or, as Ray's, another exit code; these
    become the exit again.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    came = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        came.set()
        raise SystemExit(TERMINATED)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    except (Exception, SystemExit) as error:
        if came.is_set():
            raise SystemExit(TERMINATED) from error
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
