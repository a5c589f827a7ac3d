"""`Device`: the interface to everything that differs between kinds of hardware."""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.optim import SGD, Optimizer
from torch.utils._pytree import tree_map

from boxwright.core.types import Precision
from boxwright.devices.group import find_others
from boxwright.devices.support import DeviceFacts, Support

_AUTOCAST = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
Part = TypeVar("Part", bound=Callable[..., Any])
Run = Callable[..., Sequence[Tensor]]
"""A function of flat tensors."""


class Device(Protocol):
    """One kind of hardware: one file, one entry of the catalogue.

    Attributes:
        name: what the user types, and torch's name of the device type.
        collective: the back end of torch.distributed that its processes use.
        compiler: the back end of torch.compile; empty to run networks and functions as they are.
        memory_errors: texts by which the device reports that its memory is full, beside torch.OutOfMemoryError.
        own_memory: whether each process has its own memory, instead of sharing the machine's.
        asynchronous: whether work is queued, so that reading a value makes the host wait for all of it.
        most_sizes: how many input sizes a training may use, because each costs a compilation; None for any number.
        copies_buffers: whether processes may copy each other's buffers (batch-norm statistics) at every step.
        reduces_int64: whether the collective sums 64-bit integers.
        gathers_to_one: whether the collective can gather in one process instead of all.
        numbered: whether a process can choose one of several by its number.
        packages: whether torch's compiler writes packages of machine code for it (AOTInductor).
    """

    name: str
    collective: str
    compiler: str = ""
    memory_errors: tuple[str, ...] = ()
    own_memory: bool = True
    asynchronous: bool = True
    most_sizes: int | None = None
    copies_buffers: bool = True
    reduces_int64: bool = True
    gathers_to_one: bool = True
    numbered: bool = True
    packages: bool = False

    @property
    def static_shapes(self) -> bool:
        """Whether each new shape costs a compilation: shapes should be few and repeat."""
        return self.most_sizes is not None

    # What there is.

    def count(self) -> int:
        """Return how many of them this machine has; 1 for the CPU."""
        ...

    def near_cpus(self) -> tuple[tuple[int, ...], ...]:
        """Return for each device the logical cpus near it; empty where that is not known."""
        return ()

    def supports(self, precision: Precision) -> Support:
        """Return whether a precision can be trained here, with a reason or a remark."""
        ...

    def free_bytes(self) -> int:
        """Return how much free memory this process's device has."""
        ...

    def held_bytes(self, place: torch.device) -> int:  # noqa: ARG002
        """Return how much of a device's own memory this process holds; 0 where that is not known."""
        return 0

    def title(self, place: torch.device) -> str:  # noqa: ARG002
        """Return the product's name, for a report."""
        return self.name

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
        """Return the context of a run: settings of the whole process, restored at its end.

        Args:
            precision: of the run.
            tune: whether the device may benchmark kernels to choose the fastest.
        """
        return nullcontext()

    def join_group(self, place: torch.device, timeout: timedelta) -> None:  # noqa: ARG002
        """Join the process group that the environment describes."""
        distributed.init_process_group(self.collective, timeout=timeout, **find_others(timeout))

    def parallel_devices(self, place: torch.device) -> list[torch.device] | None:  # noqa: ARG002
        """Return the `device_ids` of a parallel model."""
        return None

    # Its parts.

    def compile(self, part: Part) -> Part:
        """Return a network or a function as one compiled graph per shape, or as it is without a `compiler`."""
        if not self.compiler:
            return part
        if isinstance(part, nn.Module):
            part.compile(backend=self.compiler, dynamic=False)  # in place: the state dict's keys stay
            return part
        compiled: Any = torch.compile(part, backend=self.compiler, dynamic=False)
        return compiled  # type: ignore[no-any-return]

    def make_sgd(self, groups: Iterable[Any], *, lr: float, momentum: float, nesterov: bool) -> Optimizer:
        """Return the fastest SGD for this device."""
        return SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)

    def make_scaler(self, precision: Precision) -> torch.amp.GradScaler | None:
        """Return the loss scaler that fp16 needs, else None."""
        return torch.amp.GradScaler(self.name) if precision is Precision.FP16 else None

    # Its steps.

    def feed(self, batches: Iterable[Any], place: torch.device) -> Generator[Any, None, None]:
        """Yield nested values with every tensor on the device."""
        for batch in batches:
            yield move(batch, place)

    def autocast(self, precision: Precision) -> AbstractContextManager[None]:
        """Return the context in which the network's forward pass runs."""
        dtype = _AUTOCAST.get(precision)
        return nullcontext() if dtype is None else torch.autocast(self.name, dtype=dtype)

    def end_of_step(self) -> None:
        """Do what the device needs after backward and after the optimizer's step."""

    def average(self, ours: Sequence[Tensor], theirs: Sequence[Tensor], decay: float) -> None:
        """Move each of our tensors to decay · ours + (1 - decay) · theirs."""
        torch._foreach_lerp_(list(ours), list(theirs), 1 - decay)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Return whether an error means that the device's memory is full."""
        return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in self.memory_errors)

    def synchronize(self) -> None:
        """Wait until all queued work is done."""

    # Its requests, without gradients.

    def stage(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the host in memory that copies to the device are fast from."""
        return tensor

    def capture(self, run: Run, example: Sequence[Tensor], place: torch.device) -> Run:
        """Return a function of staged tensors, of the example's shapes, that runs as fast as the device can.

        What it returns is valid until its next call.
        """

        def enter(*tensors: Tensor) -> Sequence[Tensor]:
            outputs = run(*(tensor.to(place, non_blocking=True) for tensor in tensors))
            self.end_of_step()
            return outputs

        enter(*example)  # compiles, where the device compiles
        return enter

    def fetch(self, tensor: Tensor) -> Tensor:
        """Queue a copy of a tensor to new memory of the host, and return it; `mark` says when it is there."""
        return tensor.to("cpu", copy=True)

    def mark(self, place: torch.device, *, patient: bool) -> Callable[[], None]:  # noqa: ARG002
        """Return a function that waits for all that is queued now.

        Args:
            place: the device.
            patient: leave the core to other threads meanwhile, which takes a little longer.
        """
        return self.synchronize


def move(batch: Any, place: torch.device) -> Any:
    """Return nested values with every tensor on the device."""
    return tree_map(lambda v: v.to(place, non_blocking=True) if isinstance(v, Tensor) else v, batch)
