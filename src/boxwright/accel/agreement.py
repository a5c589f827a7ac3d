"""What all processes of a run decide together, at the same step, without waiting for each other."""

from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from boxwright.accel.nano import TorchNano

_TIMEOUT = timedelta(minutes=5)


class Agreement:
    """Whole numbers of which every process learns the highest that any has proposed.

    Call `propose` in every process before the work of a step, `result` after it: the exchange goes on beside that work,
    so it costs no time of its own. One process alone agrees with itself.

    Example:
        >>> agreement = Agreement(TorchNano())
        >>> agreement.propose(0, 3)
        >>> agreement.result()
        (0, 3)
    """

    def __init__(self, nano: TorchNano) -> None:
        self._together = nano.is_distributed
        # The numbers stay in host memory: asking a device for them would stop it in its work.
        self._group: Any = None
        if self._together and distributed.get_backend() != "gloo":
            self._group = distributed.new_group(backend="gloo", timeout=_TIMEOUT)
        self._numbers = torch.zeros(0, dtype=torch.int64)
        self._exchange: Any = None

    def propose(self, *numbers: int) -> None:
        """Say what this process wants; every process must propose as many numbers."""
        self._numbers = torch.tensor(numbers, dtype=torch.int64)
        if self._together:
            self._exchange = distributed.all_reduce(
                self._numbers, op=distributed.ReduceOp.MAX, group=self._group, async_op=True
            )

    def result(self) -> tuple[int, ...]:
        """Return the highest numbers that were proposed, the same in every process."""
        if self._exchange is not None:
            self._exchange.wait()
            self._exchange = None
        return tuple(int(number) for number in self._numbers)
