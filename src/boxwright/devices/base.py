"""The seam of the devices: everything that differs between kinds of hardware is behind it."""

from contextlib import AbstractContextManager
from typing import Protocol

import torch

from boxwright.core.types import Precision
from boxwright.devices.support import Support


class Device(Protocol):
    """One kind of hardware: one file, one entry of the catalogue.

    Attributes:
        name: what the user types.
        collective: the back end of torch.distributed that its processes talk through.
    """

    name: str
    collective: str

    def count(self) -> int:
        """Return how many of them this machine has; for the CPU 1."""
        ...

    def place(self, local_rank: int) -> torch.device:
        """Return the torch device of a process, and make it the current one."""
        ...

    def supports(self, precision: Precision) -> Support:
        """Return whether a precision can be trained here, and why not or how well."""
        ...

    def autocast(self, precision: Precision) -> AbstractContextManager[None]:
        """Return the context in which the network's forward pass runs."""
        ...

    def make_scaler(self, precision: Precision) -> torch.amp.GradScaler | None:
        """Return the loss scaler that fp16 needs, else None."""
        ...

    def end_of_step(self) -> None:
        """Do what the device wants after backward and after the optimizer's step."""
        ...

    def free_bytes(self) -> int:
        """Return how much memory this process's device has left."""
        ...

    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""
        ...
