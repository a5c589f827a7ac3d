"""The cpus near a device, on its side of the machine. It needs no torch."""

from collections.abc import Sequence
from pathlib import Path

from boxwright.core.cpu import Cpu, split_cores
from boxwright.core.procfs import parse_cpu_list, read_text


def pci_cpus(domain: int, bus: int, slot: int, root: Path = Path("/")) -> tuple[int, ...]:
    """Return the logical cpus near a PCI device; empty if the system does not know."""
    return parse_cpu_list(read_text(root / f"sys/bus/pci/devices/{domain:04x}:{bus:02x}:{slot:02x}.0/local_cpulist"))


def deal_near(cpu: Cpu, processes: int, near: Sequence[Sequence[int]]) -> list[tuple[int, ...]] | None:
    """Return the logical cpus of each process, near its device; None where an even split does the same.

    Processes with the same near cores divide them. With fewer cores than processes, each process may use all near
    cores: the accelerator does the work, and the host only has to feed it.

    Args:
        cpu: the machine's processors.
        processes: how many processes there are, each with the device of its number.
        near: the cpus near each device, as `Device.near_cpus` gives them.

    Example:
        >>> from boxwright.core.cpu import Core
        >>> cores = tuple(Core(cpus=(i,), socket=i // 2) for i in range(4))
        >>> cpu = Cpu(model="", vendor="", isa=frozenset(), all_cores=cores, allowed=(0, 1, 2, 3))
        >>> deal_near(cpu, 2, [(2, 3), (0, 1)])
        [(2, 3), (0, 1)]
        >>> deal_near(cpu, 3, [(0, 1, 2, 3)] * 3) is None
        True
        >>> deal_near(cpu, 3, [(0, 1), (0, 1), (0, 1)])
        [(0, 1), (0, 1), (0, 1)]
    """
    allowed = set(cpu.allowed)
    sides = [tuple(sorted(allowed & set(side))) for side in near[:processes]]
    if len(sides) < processes or not all(sides):
        sides = [tuple(sorted(allowed))] * processes
    if all(set(side) == allowed for side in sides) and processes <= cpu.usable_cores:
        return None
    shares: list[tuple[int, ...]] = [()] * processes
    for side in dict.fromkeys(sides):
        seated = [rank for rank, own in enumerate(sides) if own == side]
        cores = [core for core in cpu.cores if set(core.cpus) & set(side)]
        if len(cores) < len(seated):
            dealt = [side] * len(seated)
        else:
            dealt = [
                tuple(sorted(one for core in share for one in core.cpus if one in side))
                for share in split_cores(cores, len(seated))
            ]
        for rank, share in zip(seated, dealt, strict=True):
            shares[rank] = share
    return shares
