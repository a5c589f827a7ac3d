import os
import threading

import pytest

from boxwright.core.affinity import process_cpus, unbound

CPUS = frozenset(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ([{0, 1}], {0, 1}),
        ([{0}, {1}, {2, 3}], {0, 1, 2, 3}),
        ([{2, 3}, {0, 1, 2, 3}], {2, 3}),
        ([{2, 3}, {3, 4}], {2, 3}),
    ],
)
def test_only_threads_bound_elsewhere_widen_the_mask(masks: list[set[int]], expected: set[int]) -> None:
    numbered = {i: frozenset(mask) for i, mask in enumerate(masks)}
    assert process_cpus(numbered, main=0) == expected


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two cpus")
def test_a_bound_main_thread_is_let_go_and_bound_again() -> None:
    first, second = sorted(CPUS)[:2]
    ready, done = threading.Event(), threading.Event()

    def elsewhere() -> None:
        os.sched_setaffinity(0, {second})
        ready.set()
        done.wait()

    other = threading.Thread(target=elsewhere)
    other.start()
    ready.wait()
    try:
        os.sched_setaffinity(0, {first})
        with unbound():
            assert {first, second} <= os.sched_getaffinity(0)
        assert os.sched_getaffinity(0) == {first}
    finally:
        os.sched_setaffinity(0, CPUS)
        done.set()
        other.join()


def test_where_nothing_is_bound_nothing_changes() -> None:
    with unbound():
        assert os.sched_getaffinity(0) == CPUS
    assert os.sched_getaffinity(0) == CPUS
