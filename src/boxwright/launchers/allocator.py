"""The memory allocator of a process: which one it is, and how to make it keep freed memory.

By default glibc maps every large buffer anew and unmaps it when it is freed, so a network's activations cost a page
fault per 4 KiB at every step. Memory that is kept has its pages already.
"""

import ctypes
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLES: tuple[tuple[str, str], ...] = (
    ("MALLOC_MMAP_MAX_", "0"),
    ("MALLOC_TRIM_THRESHOLD_", str(2**62)),
    ("MALLOC_TOP_PAD_", str(64 << 20)),
    ("THP_MEM_ALLOC_ENABLE", "1"),  # torch asks the system for huge pages
)
"""The environment in which a process must start to keep freed memory."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4  # of malloc.h
_OTHERS = ("tcmalloc", "jemalloc", "mimalloc")
_PROBE_BYTES = 64 << 20  # glibc itself never raises its limit for mapping above 32 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocator:
    """The allocator of this process and of those that it starts.

    Attributes:
        name: "glibc", "tcmalloc", …; "" if it is unknown.
        keeps: whether this process keeps large freed blocks.
        variables: the environment that makes processes keep them.
        note: why there are no variables.
    """

    name: str = ""
    keeps: bool = False
    variables: tuple[tuple[str, str], ...] = ()
    note: str = ""

    def describe(self, *, started: bool) -> str:
        """Return a sentence about the processes of a run, if they are started, else about this one.

        Example:
            >>> Allocator(name="glibc", variables=VARIABLES[:1]).describe(started=True)
            'glibc, keeps freed memory (MALLOC_MMAP_MAX_)'
        """
        name = self.name or "the system's"
        if self.note:
            return f"{name}: {self.note}"
        if started and self.variables:
            return f"{name}, keeps freed memory ({', '.join(variable for variable, _ in self.variables)})"
        if self.keeps:
            return f"{name}, keeps freed memory"
        return f"{name}, gives freed memory back; `boxwright run` makes it keep it"


def read_allocator(env: Mapping[str, str] | None = None) -> Allocator:
    """Return the allocator of this process; variables that the user has set are not changed.

    Args:
        env: the variables to read; this process's by default.
    """
    env = os.environ if env is None else env
    try:
        loaded = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        loaded = ""
    for name in _OTHERS:
        if f"lib{name}" in loaded:
            return Allocator(name=name, note="preloaded, not changed")
    if platform.libc_ver()[0] != "glibc":
        return Allocator(note="its settings are unknown")
    own = env.get("MALLOC_MMAP_MAX_", "0")
    if own != "0":
        return Allocator(name="glibc", note=f"MALLOC_MMAP_MAX_={own} is set in the environment")
    return Allocator(
        name="glibc",
        keeps=not _maps_large_blocks(),
        variables=tuple((name, value) for name, value in VARIABLES if name not in env),
    )


def keep_freed_memory(largest: int | None = None) -> bool:
    """Make this process keep large freed blocks from now on; return whether it does.

    For programs of our own, before torch is imported: it can't be undone.

    Args:
        largest: bytes, at most 32 MiB; larger blocks are still given back, and each heap keeps four of this size at
            most. None keeps everything.
    """
    if read_allocator().note:  # the user has made another choice
        return False
    libc = ctypes.CDLL(None)
    if largest is not None:
        chosen = [(_M_MMAP_THRESHOLD, largest), (_M_TRIM_THRESHOLD, 4 * largest)]
    else:
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
        chosen = [(_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, 64 << 20)]
    return all(libc.mallopt(option, value) == 1 for option, value in chosen)


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def _maps_large_blocks() -> bool:
    """Return whether a large block gets its own mapping; tried out, as variables or code may have set it."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):  # glibc before 2.33
        return True
    libc.mallinfo2.restype = _Mallinfo2
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    before: int = libc.mallinfo2().hblks
    block = libc.malloc(_PROBE_BYTES)
    after: int = libc.mallinfo2().hblks
    libc.free(block)
    return after > before
