"""The CPU."""

from collections.abc import Generator, Iterable
from typing import Any

import torch
from torch.optim import SGD, Optimizer

from boxwright.core.cpu import Cpu, read_cpu
from boxwright.core.memory import read_memory
from boxwright.core.types import Precision
from boxwright.devices.base import Device
from boxwright.devices.options import DeviceOptions
from boxwright.devices.support import Support, cpu_support


class CpuDevice(Device):
    """Any x86 or ARM processor."""

    name = "cpu"
    collective = "gloo"
    packages = True
    own_memory = False
    asynchronous = False

    def __init__(self, options: DeviceOptions | None = None, *, cpu: Cpu | None = None) -> None:
        (options or DeviceOptions()).refuse_all_but(self.name)
        self._cpu = cpu or read_cpu()

    def count(self) -> int:
        """Return 1: processes share the CPU by its cores."""
        return 1

    def supports(self, precision: Precision) -> Support:
        """Return whether a precision can be trained here."""
        return cpu_support(precision, self._cpu.isa)

    def free_bytes(self) -> int:
        """Return the free memory of the machine or the container."""
        return read_memory().usable_bytes

    def place(self, local_rank: int) -> torch.device:  # noqa: ARG002 - every rank is on the CPU
        """Return the CPU."""
        return torch.device("cpu")

    def make_sgd(self, groups: Iterable[Any], *, lr: float, momentum: float, nesterov: bool) -> Optimizer:
        """Return SGD that updates each weight in one pass."""
        return SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, fused=True)

    def feed(self, batches: Iterable[Any], place: torch.device) -> Generator[Any, None, None]:  # noqa: ARG002
        """Yield the batches as they are."""
        yield from batches
