"""When a run stops early or saves in between: on signals and by the clock."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import distributed

from boxwright.accel.nano import TorchNano

_TIMEOUT = timedelta(minutes=5)
_SAVE_EVERY_S = 300.0


class Requests(NamedTuple):
    """What to do after a step: stop because of a signal (its number, or 0), save because time has passed."""

    stop: int
    save: bool


class StopAndSave:
    """Collects signals and the time since the last checkpoint; all processes act on them after the same step.

    Call `begin_step` and `end_step` around every step: the processes exchange their requests beside its work.
    """

    def __init__(self, nano: TorchNano, save_every_s: float = _SAVE_EVERY_S) -> None:
        self._nano, self._save_every_s = nano, save_every_s
        # The numbers stay in host memory: reading them from a device would stall it.
        self._group: Any = None
        if nano.is_distributed and distributed.get_backend() != "gloo":
            self._group = distributed.new_group(backend="gloo", timeout=_TIMEOUT)
        self._numbers = torch.zeros(0)
        self._exchange: Any = None
        self._signals: list[int] = []
        self._saved_s = time.perf_counter()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Collect SIGTERM and Ctrl-C instead of exiting, so that the step ends and a checkpoint is written."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._collect) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def begin_step(self) -> None:
        """Send this process's requests to the others."""
        if self._nano.is_distributed:
            self._numbers = torch.tensor(self._own(), dtype=torch.int64)
            self._exchange = distributed.all_reduce(
                self._numbers, op=distributed.ReduceOp.MAX, group=self._group, async_op=True
            )

    def end_step(self) -> Requests:
        """Return what every process does now."""
        if not self._nano.is_distributed:
            return self._own()
        self._exchange.wait()
        stop, save = self._numbers.tolist()
        return Requests(stop, bool(save))

    def restart_clock(self) -> None:
        """Restart the time until the next checkpoint; call it after each save."""
        self._saved_s = time.perf_counter()

    def _own(self) -> Requests:
        due = self._nano.is_global_zero and time.perf_counter() - self._saved_s > self._save_every_s
        return Requests(self._signals[0] if self._signals else 0, due)

    def _collect(self, number: int, _frame: FrameType | None) -> None:
        if self._signals and number == signal.SIGINT:  # a second Ctrl-C means now
            raise KeyboardInterrupt
        self._signals.append(number)
