"""The cpus that threads of this process may run on, and threads that are bound to fewer than the process has."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")


def process_cpus(masks: "dict[int, frozenset[int]]", main: int) -> frozenset[int]:
    """Return the cpus of a process whose main thread may be bound to a few of them.

    OpenMP can bind each of its threads to cpus of its own (OMP_PROC_BIND, KMP_AFFINITY), the main thread too. The mask
    of the main thread is then no limit of the process. It shows in threads that are bound elsewhere: where another
    thread's cpus are all closed to the main one, the process has the cpus of all its threads.

    Args:
        masks: the cpus of each thread, by its number.
        main: the number of the main thread.

    Example:
        >>> sorted(process_cpus({1: frozenset({0}), 2: frozenset({1}), 3: frozenset({0, 1})}, main=1))
        [0, 1]
        >>> sorted(process_cpus({1: frozenset({0}), 2: frozenset({0, 1})}, main=1))  # a limit set by hand
        [0]
    """
    own = masks[main]
    if any(own.isdisjoint(other) for other in masks.values()):
        return frozenset().union(*masks.values())
    return own


@contextmanager
def unbound() -> Iterator[None]:
    """Let the calling and the main thread use all cpus of the process for the time of a block.

    For libraries that read the mask, or start threads that inherit it: a binding meant for OpenMP's threads alone would
    leave them on one core. Elsewhere nothing changes. Both threads get their masks back.
    """
    if not _TASKS.is_dir():
        yield
        return
    main, caller = os.getpid(), threading.get_native_id()
    masks = _masks()
    wide = process_cpus(masks, main)
    if wide == masks[main] == masks[caller]:
        yield
        return
    try:
        for thread in (main, caller):
            os.sched_setaffinity(thread, wide)
        yield
    finally:
        for thread in (main, caller):
            os.sched_setaffinity(thread, masks[thread])


def _masks() -> dict[int, frozenset[int]]:
    found = {}
    for task in _TASKS.iterdir():
        with suppress(OSError):  # it has ended
            found[int(task.name)] = frozenset(os.sched_getaffinity(int(task.name)))
    return found
