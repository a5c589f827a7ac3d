"""The CPU."""

from contextlib import AbstractContextManager, nullcontext

import torch

from boxwright.core.cpu import Cpu, read_cpu
from boxwright.core.memory import read_memory
from boxwright.core.types import Precision
from boxwright.devices.support import Support, cpu_support

_AUTOCAST = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


class CpuDevice:
    """Any x86 or ARM processor."""

    name = "cpu"
    collective = "gloo"

    def __init__(self, cpu: Cpu | None = None) -> None:
        self._cpu = cpu or read_cpu()

    def count(self) -> int:
        """Return 1: processes share the CPU by its cores."""
        return 1

    def place(self, local_rank: int) -> torch.device:  # noqa: ARG002 - every rank is on the CPU
        """Return the CPU."""
        return torch.device("cpu")

    def supports(self, precision: Precision) -> Support:
        """Return whether a precision can be trained here."""
        return cpu_support(precision, self._cpu.isa)

    def autocast(self, precision: Precision) -> AbstractContextManager[None]:
        """Return the context of the forward pass."""
        dtype = _AUTOCAST.get(precision)
        return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)

    def make_scaler(self, precision: Precision) -> torch.amp.GradScaler | None:
        """Return the loss scaler of fp16."""
        return torch.amp.GradScaler("cpu") if precision is Precision.FP16 else None

    def end_of_step(self) -> None:
        """Do nothing: CPU work is done when it returns."""

    def free_bytes(self) -> int:
        """Return the memory that the machine, or the container, has left."""
        return read_memory().usable_bytes

    def synchronize(self) -> None:
        """Do nothing: CPU work is done when it returns."""
