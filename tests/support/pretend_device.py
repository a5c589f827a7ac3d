"""A device that is the CPU under another name and with memory of its own, to see that each part of the seam works."""

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from boxwright.devices.base import Run
from boxwright.devices.cpu import CpuDevice

NAME = "cuda"
_CAPTURE_BYTES = 3 << 20


class PretendDevice(CpuDevice):
    """Two of a kind. What happens is noted for all objects of the class.

    Attributes:
        captured: the shapes of each capture, in their order.
        waits: how often a thread has waited, patiently or not.
        full_above: the most rows that its memory holds.
    """

    name = NAME
    own_memory = True
    captured: list[list[tuple[int, ...]]]
    waits: list[bool]
    full_above: int

    def count(self) -> int:
        """Return 2."""
        return 2

    def title(self, place: torch.device) -> str:
        """Return a product's name."""
        return "Pretended"

    def held_bytes(self, place: torch.device) -> int:
        """Return more with each capture."""
        return _CAPTURE_BYTES * len(self.captured)

    def capture(self, run: Run, example: Sequence[Tensor], place: torch.device) -> Run:
        """Note the shapes; what is returned writes into the same memory at each call, as a captured graph does."""
        if len(example[0]) > self.full_above:
            raise torch.OutOfMemoryError("full")
        self.captured.append([tuple(t.shape) for t in example])
        outputs = [t.clone() for t in run(*example)]
        busy = threading.Lock()

        def replay(*tensors: Tensor) -> Sequence[Tensor]:
            assert busy.acquire(blocking=False), "two threads fill the queue at once"
            for mine, new in zip(outputs, run(*tensors), strict=True):
                mine.copy_(new)
            busy.release()
            return outputs

        return replay

    def mark(self, place: torch.device, *, patient: bool) -> Callable[[], None]:
        """Note a wait."""
        return lambda: self.waits.append(patient)
