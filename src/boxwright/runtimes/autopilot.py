"""How a model should use the machine: threads, instances and streams, chosen from topology, affinity and quota."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from boxwright.core import catalogue
from boxwright.core.cpu import Core, Cpu, split_cores
from boxwright.core.errors import check_choice
from boxwright.core.procfs import format_cpu_list
from boxwright.devices.chosen import Chosen
from boxwright.runtimes.base import Hint, Tuning

_STREAMING = ("openvino", "onnxruntime")
"""Runtimes that compute several requests at a time in one process; the others need several instances for that."""

_MOST_INSTANCES = 8  # each holds the runtime and the weights once more


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """How many processes a model runs in, and how each uses its cores.

    Attributes:
        hint: the goal.
        cpus: the logical cpus of each instance.
        threads: computing threads for one request.
        streams: requests computed in parallel in one instance.
        here: whether the one instance runs in the process that asks.
        reasons: why, one sentence each.
    """

    hint: Hint
    cpus: tuple[tuple[int, ...], ...]
    threads: int
    streams: int = 1
    here: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def instances(self) -> int:
        """How many processes."""
        return len(self.cpus)

    @property
    def side_by_side(self) -> int:
        """How many requests are computed in parallel."""
        return self.instances * self.streams

    @property
    def name(self) -> str:
        """The numbers in short."""
        streams = f" x {_count(self.streams, 'stream')}" if self.streams > 1 else ""
        return f"{_count(self.instances, 'instance')}{streams} x {_count(self.threads, 'thread')}"

    @property
    def tuning(self) -> Tuning:
        """What the model is loaded with."""
        return Tuning(
            threads=self.threads,
            hint=self.hint,
            streams=self.streams if self.streams > 1 else None,
            cpus=() if self.here else self.cpus,
        )

    def explain(self) -> str:
        """Return the choice and the reasons for it, a line each."""
        where = "in this process" if self.here else f"in {_count(self.instances, 'process', 'processes')} of their own"
        cpus = "; ".join(format_cpu_list(share) for share in self.cpus)
        return "\n".join([f"For {self.hint}: {self.name}, {where} (cpus {cpus}).", *(f"- {r}" for r in self.reasons)])


def choose(cpu: Cpu, *, hint: Hint, runtime: str, movable: bool = True) -> Arrangement:
    """Return the arrangement for a topology, affinity mask and quota; nothing is measured.

    Args:
        cpu: the machine, as `read_cpu` gives it.
        hint: the fastest answer to one request, or the most answers in a second.
        runtime: a runtime of the catalogue.
        movable: whether the model can run in its own processes: artifacts can, single files can't.

    Raises:
        UsageError: the hint or the runtime is unknown.

    Example:
        >>> four = Cpu(model="", vendor="", isa=frozenset(), allowed=(0, 1, 2, 3),
        ...            all_cores=tuple(Core(cpus=(i,)) for i in range(4)))
        >>> choose(four, hint="throughput", runtime="openvino").name
        '1 instance x 4 streams x 1 thread'
        >>> choose(four, hint="throughput", runtime="eager").name
        '4 instances x 1 thread'
    """
    check_choice("hint", hint, get_args(Hint))
    catalogue.find("runtime", runtime)
    reasons = _limits(cpu)
    usable = cpu.usable_cores
    if hint == "latency":
        cores, more = _near_cores(cpu) if movable else (list(cpu.cores), [])
        reasons += [*more, "One request at a time gets every core that helps it."]
        return _arrange(cpu, hint, [cores], min(len(cores), usable), 1, reasons)
    if runtime in _STREAMING:
        groups = split_cores(cpu.cores, min(len(cpu.nodes), usable) if movable else 1)
        reasons.append("Each stream computes a request with one thread: threads of one request wait for each other.")
        if len(groups) > 1:
            reasons.append(f"One instance for each of the {len(groups)} NUMA nodes keeps memory near.")
        return _arrange(cpu, hint, groups, 1, max(1, usable // len(groups)), reasons)
    instances = min(usable, _MOST_INSTANCES)
    reasons.append(f"{runtime} computes one request at a time in a process, so that several processes share the cores.")
    if instances < usable:
        reasons.append(f"More than {_MOST_INSTANCES} copies of the model would cost memory for little.")
    return _arrange(cpu, hint, split_cores(cpu.cores, instances), max(1, usable // instances), 1, reasons)


def choose_beside(cpu: Cpu, *, hint: Hint, device: Chosen) -> Arrangement:
    """Return the arrangement for a model on an accelerator: this process feeds it.

    Example:
        >>> cores = (Core(cpus=(0,)), Core(cpus=(1,)))
        >>> two = Cpu(model="", vendor="", isa=frozenset(), allowed=(0, 1), all_cores=cores)
        >>> choose_beside(two, hint="throughput", device=Chosen("cuda")).name
        '1 instance x 2 streams x 1 thread'
    """
    check_choice("hint", hint, get_args(Hint))
    reasons = [f"The model runs on {device}; one process feeds it, so that its weights are there once."]
    if hint == "latency":
        reasons.append("One request at a time: nothing waits for another one's copy.")
        return Arrangement(hint=hint, cpus=(cpu.allowed,), threads=1, here=True, reasons=tuple(reasons))
    streams = max(2, cpu.usable_cores)
    reasons.append("A thread per core decodes pictures; at least two requests are in flight, so that copies overlap.")
    return Arrangement(hint=hint, cpus=(cpu.allowed,), threads=1, streams=streams, here=True, reasons=tuple(reasons))


def _limits(cpu: Cpu) -> list[str]:
    cores = len(cpu.cores)
    twins = len(cpu.allowed) - cores
    reasons = [
        f"{cores} of {len(cpu.all_cores)} physical cores may be used"
        + (f"; their {twins} hyper-twins compute on the same units and get no threads." if twins else ".")
    ]
    if cpu.quota is not None and cpu.usable_cores < cores:
        reasons.append(f"The quota of {cpu.quota:g} cpus pays for {cpu.usable_cores} of them.")
    return reasons


def _near_cores(cpu: Cpu) -> tuple[list[Core], list[str]]:
    """Return the cores that suit one request: of one kind, in one socket."""
    reasons = []
    cores = list(cpu.cores)
    big = [core for core in cores if core.kind == "performance"]
    if big and len(big) < len(cores):
        reasons.append(f"The {len(cores) - len(big)} small cores are left out: the slowest thread decides.")
        cores = big
    if len(cpu.sockets) > 1:
        cores = max(([c for c in cores if c.socket == s] for s in cpu.sockets), key=len)
        reasons.append(f"All in socket {cores[0].socket}: between sockets every layer would wait for memory.")
    return cores, reasons


def _arrange(
    cpu: Cpu, hint: Hint, groups: Sequence[Sequence[Core]], threads: int, streams: int, reasons: Sequence[str]
) -> Arrangement:
    cpus = tuple(tuple(sorted(c for core in group for c in core.cpus)) for group in groups)
    here = set(cpus[0]) == set(cpu.allowed)  # a process that has them all needs no other one beside it
    return Arrangement(hint=hint, cpus=cpus, threads=threads, streams=streams, here=here, reasons=tuple(reasons))


def _count(number: int, word: str, words: str = "") -> str:
    return f"{number} {word if number == 1 else words or f'{word}s'}"
