"""The CPU: instruction sets, topology, and the cores that this process may use."""

import math
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from boxwright.core.errors import UsageError
from boxwright.core.procfs import format_cpu_list, own_groups, parse_cpu_list, read_int, read_text

CoreKind = Literal["performance", "efficiency"]

# Cores below this part of the fastest one's speed are small cores. Favoured cores of a uniform chip differ by some
# per cent only; Zen 4c and 5c run at 0.65 to 0.7 of their bigger sisters, little ARM cores below 0.5.
_SMALL = 0.8

# A quota that is this little short of one more core counts as if it paid for it (see `Cpu.usable_cores`).
_SLACK = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """One physical core.

    Attributes:
        cpus: its logical cpus (hyper-twins), lowest first.
        socket: the package it sits in.
        node: the NUMA node whose memory is near.
        kind: "efficiency" for the small cores of a hybrid chip; all cores of other chips are "performance".
    """

    cpus: tuple[int, ...]
    socket: int = 0
    node: int = 0
    kind: CoreKind = "performance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processors of a machine, and the part of them that this process may use.

    Attributes:
        model: the model name.
        vendor: the maker as the processor spells it, such as "GenuineIntel"; "" where it does not say.
        isa: which of "avx2", "avx512", "vnni", "bf16" and "amx" every core has.
        all_cores: every physical core that is online, in the order of their lowest cpu.
        allowed: the logical cpus that the mask (taskset, cpuset) leaves to this process.
        quota: how many cpus' worth of time the control groups grant; None without a limit.
    """

    model: str
    vendor: str
    isa: frozenset[str]
    all_cores: tuple[Core, ...]
    allowed: tuple[int, ...]
    quota: float | None = None

    @property
    def logical(self) -> tuple[int, ...]:
        """The logical cpus that are online."""
        return tuple(sorted(cpu for core in self.all_cores for cpu in core.cpus))

    @property
    def cores(self) -> tuple[Core, ...]:
        """The physical cores this process may use, big ones first, each with the twins that are allowed."""
        allowed = set(self.allowed)
        cut = [replace(core, cpus=tuple(cpu for cpu in core.cpus if cpu in allowed)) for core in self.all_cores]
        return tuple(sorted((core for core in cut if core.cpus), key=lambda c: (c.kind != "performance", _place(c))))

    @property
    def sockets(self) -> tuple[int, ...]:
        """The sockets with cores that this process may use."""
        return tuple(sorted({core.socket for core in self.cores}))

    @property
    def nodes(self) -> tuple[int, ...]:
        """The NUMA nodes with cores that this process may use."""
        return tuple(sorted({core.node for core in self.cores}))

    @property
    def hybrid(self) -> bool:
        """Whether big and small cores are mixed."""
        return len({core.kind for core in self.all_cores}) > 1

    @property
    def usable_cores(self) -> int:
        """How many physical cores are worth a computing thread, given mask and quota; at least 1."""
        if self.quota is None:
            return len(self.cores)
        # Rounded down (reasoned, not measured): when the quota is used up the kernel stops every thread until the
        # next period, so that threads in step wait for each other and an image now and then takes far longer. The
        # fraction is left to Python and the image decoders. With 3.9 of 4 the stop is short, and a core would idle.
        return max(1, min(len(self.cores), math.floor(self.quota + _SLACK)))

    def core_of(self, cpu: int) -> Core:
        """Return the physical core of a logical cpu: its twins, socket, node and kind.

        Raises:
            UsageError: the machine has no such cpu, or it is offline.
        """
        for core in self.all_cores:
            if cpu in core.cpus:
                return core
        raise UsageError(f"No cpu {cpu!r} is online here. Choose from: {format_cpu_list(self.logical)}.")

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain JSON values."""
        return {
            "model": self.model,
            "vendor": self.vendor,
            "isa": sorted(self.isa),
            "logical_cpus": len(self.logical),
            "physical_cores": len(self.all_cores),
            "sockets": len({core.socket for core in self.all_cores}),
            "numa_nodes": len({core.node for core in self.all_cores}),
            "efficiency_cores": sum(core.kind == "efficiency" for core in self.all_cores),
            "allowed": format_cpu_list(self.allowed),
            "allowed_cores": len(self.cores),
            "quota": self.quota,
            "usable_cores": self.usable_cores,
        }


def read_cpu(root: Path = Path("/")) -> Cpu:
    """Return the CPU of this machine, or of the machine whose /proc and /sys lie below `root`.

    Missing files are not an error, the answer is coarser: without topology each logical cpu counts as a core.

    Example:
        >>> cpu = read_cpu()
        >>> 1 <= cpu.usable_cores <= len(cpu.cores) <= len(cpu.logical)
        True
    """
    processors = _processors(root)
    first = next(iter(processors.values()), {})
    online = parse_cpu_list(read_text(root / "sys/devices/system/cpu/online")) or tuple(sorted(processors))
    online = online or tuple(range(os.cpu_count() or 1))
    mask = _mask(root)
    return Cpu(
        model=first.get("model name") or first.get("Model") or platform.machine(),
        vendor=first.get("vendor_id") or first.get("CPU implementer") or "",
        isa=_isa(processors.values()),
        all_cores=_all_cores(root, online, processors),
        allowed=tuple(cpu for cpu in online if cpu in mask) or online,
        quota=_quota(root),
    )


def split_cores(cores: Sequence[Core], workers: int) -> list[tuple[Core, ...]]:
    """Give each worker its own physical cores, never splitting one core between two workers.

    A worker stays inside one socket when there are as many workers as sockets; workers of one socket get the same
    number of cores, give or take one, and the same mix of big and small ones.

    Args:
        cores: the cores to hand out, as `Cpu.cores` gives them.
        workers: how many workers there are.

    Raises:
        UsageError: there are fewer cores than workers.

    Example:
        >>> cores = [Core(cpus=(0, 4)), Core(cpus=(1, 5)), Core(cpus=(2, 6), socket=1), Core(cpus=(3, 7), socket=1)]
        >>> [[core.cpus for core in share] for share in split_cores(cores, 2)]
        [[(0, 4), (1, 5)], [(2, 6), (3, 7)]]
    """
    if workers < 1:
        raise UsageError(f"workers={workers!r} is not possible. Ask for at least 1.")
    if len(cores) < workers:
        raise UsageError(
            f"workers={workers!r} needs as many physical cores, but this process may use {len(cores)}. "
            f"Use workers={max(1, len(cores))!r} or fewer, or allow more cpus (taskset, container limits)."
        )
    # Hyper-twins stay together: both run on the same units, two workers there slow each other down.
    sockets = [[core for core in cores if core.socket == socket] for socket in sorted({core.socket for core in cores})]
    if workers < len(sockets):
        return _deal_sockets(sockets, workers)
    seats = [0] * len(sockets)
    for _ in range(workers):
        # The next worker goes to the socket with the most cores per worker; of equals, to the emptiest.
        best = max(range(len(sockets)), key=lambda s: (len(sockets[s]) // (seats[s] + 1), -seats[s], -s))
        seats[best] += 1
    return [share for socket, seated in zip(sockets, seats, strict=True) if seated for share in _deal(socket, seated)]


def _deal_sockets(sockets: Iterable[list[Core]], workers: int) -> list[tuple[Core, ...]]:
    """Return whole sockets for each worker: the largest left goes to the worker with the fewest cores."""
    shares: list[list[Core]] = [[] for _ in range(workers)]
    for socket in sorted(sockets, key=len, reverse=True):
        min(shares, key=len).extend(socket)
    return [tuple(share) for share in shares]


def _deal(cores: Iterable[Core], workers: int) -> list[tuple[Core, ...]]:
    """Return shares of neighbouring cores (they share caches), the big ones and the small ones dealt separately."""
    shares: list[list[Core]] = [[] for _ in range(workers)]
    ordered = sorted(cores, key=_place)
    for kind in ("performance", "efficiency"):
        same = iter([core for core in ordered if core.kind == kind])
        each, rest = divmod(sum(core.kind == kind for core in ordered), workers)
        # The smallest shares get the rest: in the end no two shares differ by more than one core.
        for turn, share in enumerate(sorted(shares, key=len)):
            share.extend(next(same) for _ in range(each + (turn < rest)))
    return [tuple(share) for share in shares]


def _place(core: Core) -> tuple[int, int, tuple[int, ...]]:
    return core.socket, core.node, core.cpus


def _processors(root: Path) -> dict[int, dict[str, str]]:
    """Return the blocks of /proc/cpuinfo by the number of the cpu."""
    processors = {}
    for block in read_text(root / "proc/cpuinfo").split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        fields = {name.strip(): value.strip() for name, _, value in pairs}
        if fields.get("processor", "").isdigit():
            processors[int(fields["processor"])] = fields
    return processors


def cpu_flags(root: Path = Path("/")) -> frozenset[str]:
    """Return what every core can, in Linux's words, such as "avx512_bf16"."""
    return _flags(_processors(root).values())


def _flags(processors: Iterable[dict[str, str]]) -> frozenset[str]:
    every = [frozenset((p.get("flags") or p.get("Features") or "").split()) for p in processors]
    return frozenset.intersection(*every) if every else frozenset()


def _isa(processors: Iterable[dict[str, str]]) -> frozenset[str]:
    flags = _flags(processors)
    found = {
        "avx2": "avx2" in flags,
        # What compute libraries mean by AVX-512; Xeon Phi has avx512f without the rest.
        "avx512": flags >= {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
        "vnni": bool(flags & {"avx512_vnni", "avx_vnni"}),
        "bf16": bool(flags & {"avx512_bf16", "amx_bf16", "bf16"}),  # plain "bf16" is ARM's
        "amx": "amx_tile" in flags and bool(flags & {"amx_int8", "amx_bf16"}),
    }
    return frozenset(name for name, there in found.items() if there)


def _all_cores(root: Path, online: tuple[int, ...], processors: dict[int, dict[str, str]]) -> tuple[Core, ...]:
    near = _node_of(root)
    small = _small_cpus(root, online)
    cores: list[Core] = []
    seen: set[int] = set()
    for cpu in online:
        if cpu in seen:
            continue
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        # `thread_siblings_list` is the name before Linux 5.3.
        text = read_text(topology / "core_cpus_list") or read_text(topology / "thread_siblings_list")
        twins = set(parse_cpu_list(text)) or _twins_in_cpuinfo(cpu, processors)
        cpus = tuple(c for c in online if c == cpu or (c in twins and c not in seen))
        seen.update(cpus)
        package = read_text(topology / "physical_package_id") or processors.get(cpu, {}).get("physical id", "")
        socket = int(package) if package.isdigit() else 0  # some ARM machines say -1: unknown
        kind: CoreKind = "efficiency" if cpu in small else "performance"
        cores.append(Core(cpus=cpus, socket=socket, node=near.get(cpu, 0), kind=kind))
    return tuple(cores)


def _twins_in_cpuinfo(cpu: int, processors: dict[int, dict[str, str]]) -> set[int]:
    def core(number: int) -> tuple[str | None, str | None]:
        fields = processors.get(number, {})
        return fields.get("physical id"), fields.get("core id")

    return {other for other in processors if core(other) == core(cpu)} if None not in core(cpu) else {cpu}


def _node_of(root: Path) -> dict[int, int]:
    nodes = {}
    for file in sorted(root.glob("sys/devices/system/node/node[0-9]*/cpulist")):
        number = int(file.parent.name.removeprefix("node"))
        nodes.update(dict.fromkeys(parse_cpu_list(read_text(file)), number))
    return nodes


def _small_cpus(root: Path, online: tuple[int, ...]) -> frozenset[int]:
    """Return the cpus on small cores; none where all are of one kind."""
    # Hybrid Intel chips say so; the low-power ones of some laptops are a third list.
    groups = ("cpu_atom", "cpu_lowpower")
    named = {cpu for g in groups for cpu in parse_cpu_list(read_text(root / f"sys/devices/{g}/cpus"))}
    if named and not named.issuperset(online):
        return frozenset(named)
    for file in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        read = {cpu: read_int(root / f"sys/devices/system/cpu/cpu{cpu}/{file}") for cpu in online}
        speeds = {cpu: speed for cpu, speed in read.items() if speed is not None}
        fastest = max(speeds.values(), default=0)
        small = frozenset(cpu for cpu, speed in speeds.items() if speed < _SMALL * fastest)
        if small:
            return small
    return frozenset()


def _mask(root: Path) -> frozenset[int]:
    """Return the cpus that this process may run on; empty where the system does not say."""
    if root == Path("/") and hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    for line in read_text(root / "proc/self/status").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return frozenset(parse_cpu_list(line.partition(":")[2]))
    return frozenset()


def _quota(root: Path) -> float | None:
    """Return the smallest quota of the groups around this process, in cpus."""
    quotas = []
    for group in own_groups("cpu", root):
        words = read_text(group / "cpu.max").split()  # version 2: "150000 100000" or "max 100000"
        words = words or [read_text(group / "cpu.cfs_quota_us"), read_text(group / "cpu.cfs_period_us")]
        if len(words) == 2 and all(word.isdigit() and int(word) > 0 for word in words):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)
