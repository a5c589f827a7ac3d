"""Decisions that all processes of a run take at the same step."""

from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from boxwright.accel.nano import TorchNano

_TIMEOUT = timedelta(minutes=5)


class Agreement:
    """All-reduces integers with MAX, overlapped with the step.

    Call `propose` in every process before the work of a step, `result` after it: the exchange runs beside that work. In
    a single process the result is the proposal.

    Example:
        >>> agreement = Agreement(TorchNano())
        >>> agreement.propose(0, 3)
        >>> agreement.result()
        (0, 3)
    """

    def __init__(self, nano: TorchNano) -> None:
        self._together = nano.is_distributed
        # The numbers stay in host memory: reading them from a device would stall it.
        self._group: Any = None
        if self._together and distributed.get_backend() != "gloo":
            self._group = distributed.new_group(backend="gloo", timeout=_TIMEOUT)
        self._numbers = torch.zeros(0, dtype=torch.int64)
        self._exchange: Any = None

    def propose(self, *numbers: int) -> None:
        """Start the exchange; every process must propose the same count of numbers."""
        self._numbers = torch.tensor(numbers, dtype=torch.int64)
        if self._together:
            self._exchange = distributed.all_reduce(
                self._numbers, op=distributed.ReduceOp.MAX, group=self._group, async_op=True
            )

    def result(self) -> tuple[int, ...]:
        """Return the highest proposed numbers, the same in every process."""
        if self._exchange is not None:
            self._exchange.wait()
            self._exchange = None
        return tuple(int(number) for number in self._numbers)
