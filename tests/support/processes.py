"""Whether processes are gone, and where they listen."""

import ctypes
import os
import select

import psutil


def has_ended(pid: int, *, within_s: float = 0.0) -> bool:
    """Return whether a process has ended, or ends within a time."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ready, _, _ = select.select([process], [], [], within_s)
    os.close(process)
    return bool(ready)


def adopt_orphans() -> None:
    """Become the parent of every process that a child leaves behind."""
    assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER


def listening_addresses() -> set[str]:
    """Return the addresses on which this process accepts connections over TCP."""
    return {one.laddr.ip for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_LISTEN}
