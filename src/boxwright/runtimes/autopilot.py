"""How a model should use the machine: threads, instances and streams, chosen from the topology or measured."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from boxwright.core import catalogue
from boxwright.core.cpu import Core, Cpu, read_cpu, split_cores
from boxwright.core.errors import UsageError, suggest
from boxwright.core.procfs import format_cpu_list
from boxwright.core.signature import Array
from boxwright.core.timing import Timing, hardware_line, interleave
from boxwright.runtimes.artifact import open_graph, read_artifact, read_golden
from boxwright.runtimes.base import Graph, Hint, Tuning
from boxwright.runtimes.instances import MultiInstance

_STREAMING = ("openvino",)
"""Runtimes that compute several requests at a time in one process; the others need several instances for that."""

_MOST_INSTANCES = 8  # each holds the runtime and the weights once more


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """How many processes a model runs in, and what each of them does with its cores.

    Attributes:
        hint: what it is meant for.
        cpus: the logical cpus of each instance.
        threads: computing threads for one request.
        streams: requests computed side by side in one instance.
        reasons: why, one sentence each.
    """

    hint: Hint
    cpus: tuple[tuple[int, ...], ...]
    threads: int
    streams: int = 1
    reasons: tuple[str, ...] = ()

    @property
    def instances(self) -> int:
        """How many processes."""
        return len(self.cpus)

    @property
    def name(self) -> str:
        """The numbers in short."""
        streams = f" x {self.streams} streams" if self.streams > 1 else ""
        return f"{self.instances} instance{'s' if self.instances > 1 else ''}{streams} x {self.threads} threads"

    @property
    def tuning(self) -> Tuning:
        """What each instance is loaded with."""
        return Tuning(threads=self.threads, hint=self.hint, streams=self.streams if self.streams > 1 else None)

    def explain(self) -> str:
        """Return the choice and the reasons for it, a line each."""
        where = "; ".join(format_cpu_list(share) for share in self.cpus)
        return "\n".join([f"For {self.hint}: {self.name} (cpus {where}).", *(f"- {r}" for r in self.reasons)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What a measurement found: the best arrangement, and the time of each for one request of `batch` rows."""

    best: Arrangement
    times: Mapping[Arrangement, Timing]
    batch: int
    hardware: str

    def explain(self) -> str:
        """Return a table, the best first."""
        rows = sorted(self.times.items(), key=lambda item: item[1].median_ms)
        lines = [
            f"{a.name:<40} {t.median_ms:>9.2f} {t.p95_ms:>9.2f} {1000 * self.batch / t.median_ms:>10.1f}"
            for a, t in rows
        ]
        head = f"{'arrangement':<40} {'ms':>9} {'p95 ms':>9} {'rows/s':>10}"
        return "\n".join([f"{self.hardware}, batch {self.batch}, for {self.best.hint}", head, *lines])


def choose(cpu: Cpu, *, hint: Hint = "latency", batch: int = 1, runtime: str = "openvino") -> Arrangement:
    """Return the arrangement that the topology, the mask and the quota speak for; nothing is measured.

    Args:
        cpu: the machine, as `read_cpu` gives it.
        hint: the fastest answer to one request, or the most answers in a second.
        batch: rows of one request.
        runtime: a runtime of the catalogue.

    Raises:
        UsageError: the hint or the runtime is unknown, or the batch is below 1.

    Example:
        >>> four = Cpu(model="", vendor="", isa=frozenset(), allowed=(0, 1, 2, 3),
        ...            all_cores=tuple(Core(cpus=(i,)) for i in range(4)))
        >>> choose(four, hint="throughput").name
        '1 instance x 4 streams x 1 threads'
        >>> choose(four, hint="throughput", runtime="eager").name
        '4 instances x 1 threads'
    """
    _check(hint, batch, runtime)
    reasons = _limits(cpu)
    if hint == "latency":
        cores, more = _near_cores(cpu)
        threads = min(len(cores), cpu.usable_cores)
        reasons += [*more, "One request at a time gets every core that helps it; hyper-twins do not."]
        return _arrange(hint, [cores], threads, 1, reasons)
    usable = cpu.usable_cores
    if runtime in _STREAMING:
        groups = _groups(cpu, min(len(cpu.nodes), usable))
        reasons.append("Each stream computes a request with one thread: threads of one request wait for each other.")
        if len(groups) > 1:
            reasons.append(f"One instance for each of the {len(groups)} NUMA nodes keeps memory near.")
        return _arrange(hint, groups, 1, max(1, usable // len(groups)), reasons)
    instances = min(usable, _MOST_INSTANCES)
    threads = max(1, usable // instances)
    reasons.append(f"{runtime} computes one request at a time in a process, so that several processes share the cores.")
    if instances < usable:
        reasons.append(f"More than {_MOST_INSTANCES} copies of the model would cost memory for little.")
    return _arrange(hint, _groups(cpu, instances), threads, 1, reasons)


def candidates(
    cpu: Cpu, *, hint: Hint = "latency", batch: int = 1, runtime: str = "openvino"
) -> tuple[Arrangement, ...]:
    """Return the few arrangements worth measuring, what `choose` gives first."""
    first = choose(cpu, hint=hint, batch=batch, runtime=runtime)
    usable = cpu.usable_cores
    found = [first]
    if hint == "latency":
        cores, _ = _near_cores(cpu)
        counts = sorted({usable, first.threads // 2, first.threads // 4, 1} - {0}, reverse=True)
        every = cpu.cores
        for threads in counts:
            within = cores if threads <= len(cores) else every
            found.append(_arrange(hint, [within], threads, 1, ["To be measured."]))
    else:
        for instances in sorted({1, 2, usable // 4, usable // 2, usable} - {0}):
            if instances > min(usable, 2 * _MOST_INSTANCES):
                continue
            groups, share = _groups(cpu, instances), usable // instances
            found.append(_arrange(hint, groups, share, 1, ["To be measured."]))
            if runtime in _STREAMING and share > 1:
                found.append(_arrange(hint, groups, 1, share, ["To be measured."]))
                if share >= 4:
                    found.append(_arrange(hint, groups, 2, share // 2, ["To be measured."]))
    unique: dict[object, Arrangement] = {}
    for arrangement in found:
        unique.setdefault((arrangement.cpus, arrangement.threads, arrangement.streams), arrangement)
    return tuple(unique.values())


def open_arranged(folder: Path, arrangement: Arrangement) -> Graph:
    """Return the artifact as the arrangement says: in this process for one instance, in others for several."""
    if arrangement.instances == 1:
        return open_graph(folder, arrangement.tuning)
    return MultiInstance(folder, arrangement.cpus, arrangement.tuning)


def tune(
    folder: Path,
    hint: Hint = "latency",
    *,
    batch: int = 1,
    rounds: int = 20,
    arrangements: Sequence[Arrangement] | None = None,
) -> Tuned:
    """Return the fastest of a few arrangements, timed in turns on the artifact's golden input.

    Each runs in processes of its own, so that no runtime's thread limit reaches another.

    Args:
        folder: the artifact.
        hint: what to be fast at.
        batch: rows of one request; the artifact's own where its batch is fixed.
        rounds: how often each is timed.
        arrangements: what to try (default: `candidates` for this machine).
    """
    artifact = read_artifact(folder)
    tries = arrangements or candidates(read_cpu(), hint=hint, batch=batch, runtime=artifact.choice.runtime)
    inputs = [np.asarray(a) for a in read_golden(folder)[0]]
    if artifact.signature.free_batch:
        inputs = [_with_rows(a, batch) for a in inputs]
    else:
        batch = len(inputs[0]) if inputs[0].ndim else 1
    inputs = artifact.signature.check(inputs)
    # Enough requests at a time to keep every stream of every instance at work, the same number for all.
    many = 1 if hint == "latency" else 4 * max(a.instances * a.streams for a in tries)
    with ExitStack() as stack:
        graphs = [stack.enter_context(MultiInstance(folder, a.cpus, a.tuning)) for a in tries]
        functions = {
            str(i): (lambda graph=graph: list(graph.run_all([inputs] * many))) for i, graph in enumerate(graphs)
        }
        times = interleave(functions, rounds, warmup=2)
    each = {a: Timing(samples_ms=tuple(ms / many for ms in times[str(i)].samples_ms)) for i, a in enumerate(tries)}
    best = min(each, key=lambda a: each[a].median_ms)
    return Tuned(best=best, times=each, batch=batch, hardware=hardware_line())


def _check(hint: str, batch: int, runtime: str) -> None:
    known = get_args(Hint)
    if hint not in known:
        raise UsageError(f"Unknown hint {hint!r}.{suggest(hint, known)} Choose from: {', '.join(known)}.")
    if batch < 1:
        raise UsageError(f"batch={batch!r} must be at least 1.")
    catalogue.find("runtime", runtime)


def _limits(cpu: Cpu) -> list[str]:
    cores = len(cpu.cores)
    twins = len(cpu.allowed) - cores
    reasons = [
        f"{cores} of {len(cpu.all_cores)} physical cores may be used"
        + (f"; their {twins} hyper-twins compute on the same units and are left out." if twins else ".")
    ]
    if cpu.quota is not None and cpu.usable_cores < cores:
        reasons.append(f"The quota of {cpu.quota:g} cpus pays for {cpu.usable_cores} of them.")
    return reasons


def _near_cores(cpu: Cpu) -> tuple[list[Core], list[str]]:
    """Return the cores that work well on one request: of one kind, in one socket."""
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


def _groups(cpu: Cpu, count: int) -> list[tuple[Core, ...]]:
    return split_cores(cpu.cores, count)


def _arrange(
    hint: Hint, groups: Sequence[Sequence[Core]], threads: int, streams: int, reasons: Sequence[str]
) -> Arrangement:
    cpus = tuple(tuple(sorted(c for core in group for c in core.cpus)) for group in groups)
    return Arrangement(hint=hint, cpus=cpus, threads=threads, streams=streams, reasons=tuple(reasons))


def _with_rows(array: Array, rows: int) -> Array:
    return array[np.arange(rows) % len(array)]
