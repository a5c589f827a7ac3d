"""The seam of the devices: everything that differs between kinds of hardware is behind it."""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, distributed
from torch.optim import SGD, Optimizer
from torch.utils._pytree import tree_map

from boxwright.core.types import Precision
from boxwright.devices.support import DeviceFacts, Support

Part = TypeVar("Part", bound=Callable[..., Any])


class Device(Protocol):
    """One kind of hardware: one file, one entry of the catalogue. What is not overridden is what a CPU does.

    Attributes:
        name: what the user types.
        collective: the back end of torch.distributed that its processes talk through.
        own_memory: whether each process has a memory of its own, instead of all sharing the machine's.
        asynchronous: whether work is queued, so that reading a value back makes the host wait for all of it.
        static_shapes: whether each new shape costs a compilation: shapes should be few and come again.
        most_sizes: how many input sizes a training may change between; None for any number.
        copies_buffers: whether processes may copy each other's buffers (batch-norm statistics) at every step.
        reduces_int64: whether the collective adds up whole numbers of 64 bits.
        gathers_to_one: whether the collective can gather in one process, and not only in all.
    """

    name: str
    collective: str
    own_memory: bool = True
    asynchronous: bool = True
    static_shapes: bool = False
    most_sizes: int | None = None
    copies_buffers: bool = True
    reduces_int64: bool = True
    gathers_to_one: bool = True

    # What there is.

    def count(self) -> int:
        """Return how many of them this machine has; for the CPU 1."""
        ...

    def near_cpus(self) -> tuple[tuple[int, ...], ...]:
        """Return for each device the logical cpus that are near it; empty where that is not known."""
        return ()

    def supports(self, precision: Precision) -> Support:
        """Return whether a precision can be trained here, and why not or how well."""
        ...

    def free_bytes(self) -> int:
        """Return how much memory this process's device has left."""
        ...

    def facts(self, precision: Precision) -> DeviceFacts:
        """Return what a plan needs to know about the device."""
        return DeviceFacts(
            name=self.name,
            support=self.supports(precision),
            count=self.count(),
            near_cpus=self.near_cpus(),
            environment=self.environment(),
        )

    # A process of a run.

    def environment(self) -> dict[str, str]:
        """Return the variables that a process needs before torch is imported there."""
        return {}

    def place(self, local_rank: int) -> torch.device:
        """Return the torch device of a process, and make it the current one."""
        ...

    def working(self, precision: Precision, *, tune: bool = True) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return the context of a run: settings of the whole process, put back at its end.

        Args:
            precision: what the run computes in.
            tune: whether the device may try which kernels are quickest.
        """
        return nullcontext()

    def join_group(self, place: torch.device, timeout: timedelta) -> None:  # noqa: ARG002
        """Join the process group that the environment describes."""
        distributed.init_process_group(self.collective, timeout=timeout)

    def parallel_devices(self, place: torch.device) -> list[torch.device] | None:  # noqa: ARG002
        """Return the `device_ids` of a parallel model."""
        return None

    # Its parts.

    def compile(self, part: Part) -> Part:
        """Return a network or a function as a compiled graph where that pays, else as it is."""
        return part

    def make_sgd(self, groups: Iterable[Any], *, lr: float, momentum: float, nesterov: bool) -> Optimizer:
        """Return SGD in the form that is quickest here."""
        return SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)

    def make_scaler(self, precision: Precision) -> torch.amp.GradScaler | None:  # noqa: ARG002
        """Return the loss scaler that fp16 needs, else None."""
        return None

    # Its steps.

    def feed(self, batches: Iterable[Any], place: torch.device) -> Generator[Any, None, None]:
        """Yield nested values with every tensor on the device."""
        for batch in batches:
            yield move(batch, place)

    def autocast(self, precision: Precision) -> AbstractContextManager[None]:
        """Return the context in which the network's forward pass runs."""
        ...

    def end_of_step(self) -> None:
        """Do what the device wants after backward and after the optimizer's step."""

    def average(self, ours: Sequence[Tensor], theirs: Sequence[Tensor], decay: float) -> None:
        """Move each of our tensors to decay · ours + (1 - decay) · theirs."""
        torch._foreach_lerp_(list(ours), list(theirs), 1 - decay)

    def is_out_of_memory(self, error: BaseException) -> bool:  # noqa: ARG002
        """Return whether an error says that the device's memory is full."""
        return False

    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""


def move(batch: Any, place: torch.device) -> Any:
    """Return nested values with every tensor on the device."""
    return tree_map(lambda v: v.to(place, non_blocking=True) if isinstance(v, Tensor) else v, batch)
