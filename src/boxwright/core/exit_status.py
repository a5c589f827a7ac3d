"""How a process ended, in words."""

import signal

_REASONS: dict[int, str] = {
    signal.SIGKILL: "Most often the machine or its container ran out of memory: use a smaller batch or fewer processes",
    signal.SIGSEGV: "A native library crashed; its stack is in the output of the process",
    signal.SIGABRT: "A native library aborted; its reason is in the output of the process",
    signal.SIGBUS: "Most often shared memory or a disk is full: check /dev/shm",
    signal.SIGILL: "A native library uses instructions that this CPU does not have",
}


def describe_exit(status: int | None) -> tuple[str, str]:
    """Return how a process ended, and the most likely reason.

    Args:
        status: its exit status, or minus the number of the signal that killed it; None if it is not known.

    Example:
        >>> describe_exit(-7)
        ('was killed by signal 7 (SIGBUS)', 'Most often shared memory or a disk is full: check /dev/shm')
    """
    if status is None or status >= 0:
        return f"ended with exit status {status}", "Its output says why, unless something called os._exit"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    return f"was killed by signal {-status} ({name})", _REASONS.get(-status, "Another process stopped it")
