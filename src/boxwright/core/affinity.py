"""The cpus that this process may use, even if OpenMP has bound its main thread to a few of them."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")


def process_cpus(masks: "dict[int, frozenset[int]]", main: int) -> frozenset[int]:
    """Return the cpus of a process whose main thread may be bound to a few of them.

    OpenMP can bind each of its threads, the main thread too (OMP_PROC_BIND, KMP_AFFINITY). The mask of the main thread
    is then not the limit of the process. Threads that are bound elsewhere show it: if another thread's cpus are all
    closed to the main one, the process has the cpus of all its threads.

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
    """Let the calling and the main thread use all cpus of the process during a block.

    For libraries that read the mask or start threads that inherit it: a binding meant for OpenMP's threads would leave
    them on one core. Both threads get their masks back afterwards.
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
