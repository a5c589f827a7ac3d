"""The plan of a run: every choice resolved once, every conflict rejected, the same text everywhere it is shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from boxwright.core import catalogue
from boxwright.core.cpu import Cpu
from boxwright.core.errors import UsageError, suggest
from boxwright.core.procfs import format_cpu_list
from boxwright.core.types import Precision
from boxwright.devices.near import deal_near
from boxwright.devices.support import DeviceFacts, cpu_support
from boxwright.launchers.allocator import Allocator
from boxwright.launchers.base import WorkerSpec
from boxwright.launchers.placement import ELSEWHERE, make_workers, make_workers_anywhere

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a user asks of a run.

    Attributes:
        precision: "64", "32", "16", "bf16" or "bf16-true", in any usual spelling.
        num_processes: how many processes; None for 1 on the CPU, one per device on an accelerator.
        strategy: the name of the launcher that starts them; None for "subprocess".
        cpu_for_each_process: which cpus each process gets, instead of an even share.
        batch: images of a step over all processes; 0 where the loop is the user's own.
        auto_lr: multiply the rate by the number of processes; `{"warmup_epochs": n}` gets there in n epochs.
        channels_last: the memory layout.
        allocator: this process's, as `read_allocator()` returns it; None leaves it out of the plan.
        world_size: all processes, where an outer launcher has started them, some on other machines.
        launcher_notes: what the launcher adds to the plan.
    """

    precision: str | int | Precision = "32"
    num_processes: int | None = None
    strategy: str | None = None
    cpu_for_each_process: Sequence[Sequence[int]] | None = None
    batch: int = 0
    auto_lr: bool | Mapping[str, float] = False
    channels_last: bool = False
    allocator: Allocator | None = None
    world_size: int | None = None
    launcher_notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a run will use the machine.

    Attributes:
        device: "cpu" or a name of the catalogue.
        precision: the number format of the forward pass and the weights.
        precision_why: why it is this one, or what to know about it.
        strategy: what starts the processes; "none" for one process that is already there.
        workers: one entry per process: its rank, cores, threads and environment.
        allocator: how the processes get memory.
        batch: images of a step over all processes; 0 where the loop is the user's own.
        lr_factor: what the learning rate is multiplied by for the number of processes.
        lr_warmup_epochs: how long the learning rate takes to get there.
        channels_last: whether images and weights lie channels last in memory.
        notes: more reasons.
    """

    device: str
    precision: Precision
    strategy: str
    workers: tuple[WorkerSpec, ...]
    precision_why: str = ""
    allocator: str = ""
    batch: int = 0
    lr_factor: float = 1.0
    lr_warmup_epochs: float = 0.0
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
            f"precision    {self.precision}" + (f" ({self.precision_why})" if self.precision_why else ""),
            f"processes    {self.processes} ({self.strategy})",
        ]
        if self.workers[0].anywhere:
            lines.append(f"  each       its share of the machine where {self.strategy} starts it")
        for worker in self.workers:
            if worker.anywhere:
                continue
            cores = format_cpu_list(worker.cores) if worker.cores else "as the system gives them"
            threads = "1 thread" if worker.threads == 1 else f"{worker.threads} threads"
            lines.append(f"  rank {worker.rank:<3}   cpus {cores}, {threads}")
        if self.allocator:
            lines.append(f"allocator    {self.allocator}")
        if self.batch:
            lines.append(f"batch        {self.batch} per step, {self.batch_per_process} per process")
        lines.append(f"memory       {'channels last' if self.channels_last else 'channels first'}")
        over = f", reached in {self.lr_warmup_epochs:g} epochs" if self.lr_warmup_epochs else ""
        scaled = f"times {self.lr_factor:g}{over} (auto_lr)"
        lines.append(f"lr           {'as given, whatever the number of processes' if self.lr_factor == 1 else scaled}")
        return [*lines, *(f"note         {note}" for note in self.notes)]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return {name: getattr(self, name) for name in Plan.__slots__} | {
            "precision": str(self.precision),
            "processes": self.processes,
            "workers": [
                {"rank": w.rank, "cpus": list(w.cores), "threads": None if w.anywhere else w.threads}
                for w in self.workers
            ],
            "batch_per_process": self.batch_per_process,
            "notes": list(self.notes),
        }

    @classmethod
    def resolve(cls, request: Request, cpu: Cpu, facts: DeviceFacts | None = None) -> "Plan":
        """Return the plan for a request on this machine. A pure function: it reads nothing.

        Args:
            request: what the user asked for.
            cpu: the machine's processors.
            facts: what the device says of itself; None for the CPU.

        Raises:
            UsageError: a choice is unknown, or two contradict each other; the message says what to do instead.

        Example:
            >>> from boxwright.core.cpu import read_cpu
            >>> Plan.resolve(Request(num_processes=1), read_cpu()).strategy
            'none'
        """
        strategy = request.strategy or "subprocess"
        catalogue.find("launcher", strategy)
        elsewhere = strategy in ELSEWHERE
        precision = Precision.parse(request.precision)
        facts = facts or DeviceFacts(name="cpu", support=cpu_support(precision, cpu.isa))
        if not facts.support.ok:
            raise UsageError(
                f"precision={str(precision)!r} does not train on device={facts.name!r}: {facts.support.note}."
            )
        processes = request.num_processes
        if processes is None:
            processes = 1 if facts.name == "cpu" else facts.count
        _check_processes(request, facts, processes, strategy)
        workers, placed = _place_workers(request, cpu, facts, processes, elsewhere=elsewhere)
        notes = [*request.launcher_notes, *placed]
        if cpu.quota is not None and not elsewhere:
            notes.append(f"the container's quota of {cpu.quota:g} cpus limits the threads")
        if processes == 1 and not elsewhere:
            strategy = "none"
        allocator = request.allocator
        variables = (*facts.environment.items(), *(allocator.variables if allocator is not None else ()))
        scales, warmup_epochs = _read_auto_lr(request.auto_lr)
        return cls(
            device=facts.name,
            precision=precision,
            precision_why=facts.support.note or (_compare_with_bf16(cpu) if facts.name == "cpu" else ""),
            strategy=strategy,
            workers=tuple(replace(worker, env=(*variables, *worker.env)) for worker in workers),
            allocator="" if allocator is None else allocator.describe(started=strategy != "none"),
            batch=request.batch,
            lr_factor=float(request.world_size or processes) if scales else 1.0,
            lr_warmup_epochs=warmup_epochs,
            channels_last=request.channels_last,
            notes=tuple(notes),
        )


def one_of(name: str, value: T | None, other: str, alias: T | None) -> T | None:
    """Return the value of a setting that has two names."""
    if value is not None and alias is not None and value != alias:
        raise UsageError(f"{name}={value!r} and {other}={alias!r} mean the same thing. Give one of them.")
    return value if value is not None else alias


def _check_processes(request: Request, facts: DeviceFacts, processes: int, strategy: str) -> None:
    """Reject a number of processes that contradicts the rest of the request."""
    batch, device = request.batch, facts.name
    if processes < 1:
        raise UsageError(f"num_processes={processes!r} is not possible. Ask for at least 1.")
    if strategy in ELSEWHERE and device != "cpu":
        raise UsageError(
            f"strategy={strategy!r} hands out cpus only, so it can't be used with device={device!r}. "
            "Use device='cpu', or strategy='subprocess' on a machine that has the device."
        )
    if strategy in ELSEWHERE and request.cpu_for_each_process is not None:
        raise UsageError(
            f"cpu_for_each_process names cpus of this machine, and strategy={strategy!r} has others. "
            "Each process gets its share of the machine where it is started; cores_per_worker sets how much."
        )
    if device != "cpu" and processes > facts.count:
        raise UsageError(
            f"num_processes={processes!r} needs as many {device} devices, but there are {facts.count}. "
            f"Use num_processes={facts.count!r} or fewer."
        )
    if request.cpu_for_each_process is not None and processes == 1:
        raise UsageError(
            "cpu_for_each_process pins processes that are started. One process stays where it is: use "
            "num_processes=2 or more, or start the program with `taskset` or `boxwright run`."
        )
    if batch and batch % processes:
        below, above = batch - batch % processes, batch + processes - batch % processes
        raise UsageError(
            f"A batch of {batch} can't be shared by {processes} processes evenly. "
            f"Use a batch of {f'{below} or ' if below else ''}{above}."
        )
    if processes == 1 and strategy not in ELSEWHERE and request.launcher_notes:
        raise UsageError(
            f"Restarts and the like ({', '.join(request.launcher_notes)}) are for processes that are started; one "
            "stays where it is. Use num_processes=2 or more, or leave them out."
        )


def _place_workers(
    request: Request, cpu: Cpu, facts: DeviceFacts, processes: int, *, elsewhere: bool
) -> tuple[list[WorkerSpec], list[str]]:
    """Return the workers with their cores, and what to note about them."""
    if elsewhere:
        return make_workers_anywhere(processes), []
    chosen = request.cpu_for_each_process
    near = deal_near(cpu, processes, facts.near_cpus) if facts.name != "cpu" and processes > 1 else None
    if chosen is not None or near is None:
        return make_workers(cpu, processes, cpu_for_each_process=chosen), []
    few = 1 if processes > cpu.usable_cores else None
    workers = make_workers(cpu, processes, cpu_for_each_process=near, threads=few, allow_overlap=True)
    return workers, ["each process is on cpus near its device" if facts.near_cpus else "processes share the cpus"]


def _read_auto_lr(auto_lr: bool | Mapping[str, float]) -> tuple[bool, float]:
    """Return whether the learning rate is scaled, and in how many epochs."""
    if isinstance(auto_lr, bool):
        return auto_lr, 0.0
    wrong = [key for key in auto_lr if key != "warmup_epochs"]
    if wrong or not auto_lr:
        near = suggest(wrong[0], ["warmup_epochs"]) if wrong else ""
        raise UsageError(f"auto_lr={dict(auto_lr)!r} can't be used.{near} Use True or {{'warmup_epochs': 3}}.")
    epochs = auto_lr["warmup_epochs"]
    if isinstance(epochs, bool) or not isinstance(epochs, int | float) or epochs < 0:
        raise UsageError(f"auto_lr={dict(auto_lr)!r}: warmup_epochs must be a number, 0 or more.")
    return True, float(epochs)


def _compare_with_bf16(cpu: Cpu) -> str:
    """Return what a user of 32 or 64 may want to know: whether this CPU has bf16 instructions."""
    if cpu.isa & {"amx", "bf16"}:
        return f"as exact as it gets; {cpu_support(Precision.BF16, cpu.isa).note} here"
    return "this CPU has no instructions for bf16"
