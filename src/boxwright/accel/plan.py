"""The plan of a run: every choice resolved once, every conflict refused, the same text everywhere it is shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from boxwright.core import catalogue
from boxwright.core.cpu import Cpu
from boxwright.core.errors import UsageError
from boxwright.core.procfs import format_cpu_list
from boxwright.core.types import Precision
from boxwright.devices.support import Support, cpu_support
from boxwright.launchers.base import WorkerSpec
from boxwright.launchers.placement import make_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a run will use the machine.

    Attributes:
        device: "cpu" or a name of the catalogue.
        precision: the number format of the forward pass and the weights.
        strategy: what starts the processes; "none" for one process that is already there.
        workers: one entry a process: its rank, cores and threads.
        batch: images of a step over all processes; 0 where the loop is the user's own.
        lr_factor: what the learning rate is multiplied by for the number of processes.
        channels_last: whether images and weights lie channels last in memory.
        notes: why, in sentences.
    """

    device: str
    precision: Precision
    strategy: str
    workers: tuple[WorkerSpec, ...]
    batch: int = 0
    lr_factor: float = 1.0
    channels_last: bool = False
    notes: tuple[str, ...] = ()

    @property
    def processes(self) -> int:
        """How many processes take part."""
        return len(self.workers)

    @property
    def batch_per_process(self) -> int:
        """How many images of a step one process has."""
        return self.batch // self.processes

    def lines(self) -> list[str]:
        """Return the plan for people."""
        lines = [
            f"device       {self.device}",
            f"precision    {self.precision}",
            f"processes    {self.processes} ({self.strategy})",
        ]
        for worker in self.workers:
            cores = format_cpu_list(worker.cores) if worker.cores else "as the system gives them"
            lines.append(f"  rank {worker.rank:<3}   cpus {cores}, {worker.threads} threads")
        if self.batch:
            lines.append(f"batch        {self.batch} a step, {self.batch_per_process} a process")
        lines.append(f"memory       {'channels last' if self.channels_last else 'channels first'}")
        if self.lr_factor != 1.0:
            lines.append(f"lr           times {self.lr_factor:g}")
        return [*lines, *(f"note         {note}" for note in self.notes)]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return {
            "device": self.device,
            "precision": str(self.precision),
            "strategy": self.strategy,
            "processes": self.processes,
            "workers": [{"rank": w.rank, "cpus": list(w.cores), "threads": w.threads} for w in self.workers],
            "batch": self.batch,
            "lr_factor": self.lr_factor,
            "channels_last": self.channels_last,
            "notes": list(self.notes),
        }

    @classmethod
    def resolve(
        cls,
        *,
        cpu: Cpu,
        device: str = "cpu",
        precision: str | int | Precision = "32",
        num_processes: int | None = None,
        strategy: str | None = None,
        cpu_for_each_process: Sequence[Sequence[int]] | None = None,
        batch: int = 0,
        auto_lr: bool = False,
        channels_last: bool = False,
        support: Support | None = None,
        device_count: int = 1,
    ) -> "Plan":
        """Return the plan for what a user asked for on this machine. A pure function: it reads nothing.

        Args:
            cpu: the machine's processors.
            device: where the tensors are.
            precision: "64", "32", "16", "bf16" or "bf16-true", in any usual spelling.
            num_processes: how many processes; None for 1 on the CPU, one a device elsewhere.
            strategy: what starts them: a launcher's name; None for "subprocess".
            cpu_for_each_process: which cpus each process gets, instead of an even share.
            batch: images of a step over all processes; 0 where the loop is the user's own.
            auto_lr: multiply the learning rate by the number of processes.
            channels_last: the memory layout.
            support: what the device says of the precision; the CPU's is told by its instruction sets.
            device_count: how many devices there are.

        Raises:
            UsageError: a choice is unknown, or two contradict each other; the message says what to do instead.
        """
        catalogue.find("device", device)
        strategy = strategy or "subprocess"
        catalogue.find("launcher", strategy)
        precision = Precision.parse(precision)
        if support is None:
            if device != "cpu":
                raise UsageError(f"device={device!r} was not asked about precision={str(precision)!r}.")
            support = cpu_support(precision, cpu.isa)
        if not support.ok:
            raise UsageError(f"precision={str(precision)!r} does not train on device={device!r}: {support.note}.")
        notes = [support.note] if support.note else []

        processes = num_processes if num_processes is not None else (1 if device == "cpu" else device_count)
        if processes < 1:
            raise UsageError(f"num_processes={processes!r} is not possible. Ask for at least 1.")
        if device != "cpu" and processes > device_count:
            raise UsageError(
                f"num_processes={processes!r} needs as many {device} devices, but there are {device_count}. "
                f"Use num_processes={device_count!r} or fewer."
            )
        if batch and batch % processes:
            raise UsageError(
                f"A batch of {batch} can't be shared by {processes} processes evenly. "
                f"Use a batch of {batch - batch % processes or processes} or {batch + processes - batch % processes}."
            )
        if cpu_for_each_process is not None and processes == 1:
            raise UsageError(
                "cpu_for_each_process pins processes that are started. One process stays where it is: use "
                "num_processes=2 or more, or start the program with `taskset` or `boxwright run`."
            )
        workers = tuple(make_workers(cpu, processes, cpu_for_each_process=cpu_for_each_process))
        if cpu.quota is not None:
            notes.append(f"the container's quota of {cpu.quota:g} cpus limits the threads")
        if processes == 1:
            strategy = "none"
        return cls(
            device=device,
            precision=precision,
            strategy=strategy,
            workers=workers,
            batch=batch,
            lr_factor=float(processes) if auto_lr else 1.0,
            channels_last=channels_last,
            notes=tuple(notes),
        )
