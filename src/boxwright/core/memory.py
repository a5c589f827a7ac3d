"""The memory of the machine, and what of it this process may still allocate."""

import os
from dataclasses import dataclass
from pathlib import Path

from boxwright.core.procfs import own_groups, read_int, read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The machine's memory and this process' share of it, in bytes.

    Attributes:
        total_bytes: what the machine has; 0 where the system does not say.
        available_bytes: what the machine can give without swapping.
        limit_bytes: the smallest limit of the control groups around this process; None without one.
        limit_left_bytes: what those limits leave; None without one.
    """

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None = None
    limit_left_bytes: int | None = None

    @property
    def usable_bytes(self) -> int:
        """What this process may still take: free on the machine and inside the limits."""
        if self.limit_left_bytes is None:
            return self.available_bytes
        return min(self.available_bytes, self.limit_left_bytes)

    def to_dict(self) -> dict[str, int | None]:
        """Return the sizes as plain JSON values."""
        return {
            "total_bytes": self.total_bytes,
            "available_bytes": self.available_bytes,
            "limit_bytes": self.limit_bytes,
            "usable_bytes": self.usable_bytes,
        }


def read_memory(root: Path = Path("/")) -> Memory:
    """Return the memory of this machine, or of the machine whose /proc and /sys lie below `root`.

    Example:
        >>> memory = read_memory()
        >>> 0 <= memory.usable_bytes <= memory.total_bytes
        True
    """
    facts = _facts(read_text(root / "proc/meminfo"), unit=1024)
    total = facts.get("MemTotal", 0) or _system_total()
    # Kernels before 3.14 and some sandboxes give no estimate of their own.
    guess = facts.get("MemFree", total) + facts.get("Buffers", 0) + facts.get("Cached", 0)
    available = min(facts.get("MemAvailable", guess), total)
    limits, left = [], []
    for group in own_groups("memory", root):
        stat = _facts(read_text(group / "memory.stat"))
        limit = _limit(group, stat)
        if limit is None or limit >= total > 0:
            continue
        limits.append(limit)
        left.append(max(0, limit - _held(group, stat)))
    return Memory(
        total_bytes=total,
        available_bytes=available,
        limit_bytes=min(limits, default=None),
        limit_left_bytes=min(left, default=None),
    )


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds, with what it shares; 0 if it has ended."""
    words = read_text(Path(f"/proc/{pid}/statm")).split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 else 0


def _facts(text: str, unit: int = 1) -> dict[str, int]:
    """Return the numbers of "name: number ..." lines; the colon may be missing."""
    facts = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isdigit():
            facts[words[0].rstrip(":")] = int(words[1]) * unit
    return facts


def _limit(group: Path, stat: dict[str, int]) -> int | None:
    """Return the smallest limit of one group; version 1 also has the limits of invisible parents."""
    # Above memory.high a process is not killed but slowed to a crawl.
    files = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limits = [limit for name in files if (limit := read_int(group / name)) is not None]
    if "hierarchical_memory_limit" in stat:
        limits.append(stat["hierarchical_memory_limit"])
    return min(limits, default=None)


def _held(group: Path, stat: dict[str, int]) -> int:
    """Return what a group can't free: all its memory except cached files, which the kernel drops on demand."""
    used = read_int(group / "memory.current") or read_int(group / "memory.usage_in_bytes") or 0
    # Version 1 counts the groups below only in the "total_" lines.
    files = sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in ("inactive_file", "active_file"))
    return max(0, used - files)


def _system_total() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
