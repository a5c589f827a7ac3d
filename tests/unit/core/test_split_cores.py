from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.machines import lay_out

from boxwright.core.cpu import Core, read_cpu, split_cores
from boxwright.core.errors import UsageError


def _machine(*sizes: int) -> list[Core]:
    """Sockets with so many cores, each core with two twins."""
    sockets = [socket for socket, size in enumerate(sizes) for _ in range(size)]
    return [Core(cpus=(c, c + len(sockets)), socket=socket, node=socket) for c, socket in enumerate(sockets)]


def _sizes(cores: list[Core], workers: int) -> list[tuple[int, ...]]:
    """For each worker, how many cores it has on each of its sockets."""
    return [tuple(Counter(core.socket for core in share).values()) for share in split_cores(cores, workers)]


@pytest.mark.parametrize(
    ("sockets", "workers", "sizes"),
    [
        ((4,), 1, [(4,)]),
        ((4,), 2, [(2,), (2,)]),
        ((5,), 2, [(3,), (2,)]),
        ((8, 8), 2, [(8,), (8,)]),
        ((8, 8), 3, [(4,), (4,), (8,)]),  # nobody crosses, though five cores each were possible
        ((8, 8), 16, [(1,)] * 16),
        ((7, 1), 2, [(4,), (3,)]),  # a lone core would hold all others up
        ((7, 3), 2, [(7,), (3,)]),
        ((8, 8), 1, [(8, 8)]),  # one worker has all there is
        ((8, 8, 8, 8), 2, [(8, 8), (8, 8)]),
        ((7, 8, 1), 2, [(8,), (7, 1)]),
    ],
)
def test_workers_are_spread_over_sockets(sockets: tuple[int, ...], workers: int, sizes: list[tuple[int, ...]]) -> None:
    assert _sizes(_machine(*sockets), workers) == sizes


def test_big_and_small_cores_are_dealt_evenly(tmp_path: Path) -> None:
    cpu = read_cpu(lay_out("laptop_i7_1260p", tmp_path))

    for share in split_cores(cpu.cores, 4):
        assert Counter(core.kind for core in share) == {"performance": 1, "efficiency": 2}


def test_neighbours_and_numa_nodes_stay_together() -> None:
    # The numbers alternate between two nodes of one socket, as some firmware does it.
    cores = [Core(cpus=(c,), node=c % 2) for c in range(8)]

    assert [{core.node for core in share} for share in split_cores(cores, 2)] == [{0}, {1}]


def test_more_workers_than_cores_is_refused() -> None:
    with pytest.raises(UsageError, match=r"workers=3 .* may use 2\."):
        split_cores(_machine(2), 3)


@pytest.mark.parametrize("workers", [0, -1])
def test_less_than_one_worker_is_refused(workers: int) -> None:
    with pytest.raises(UsageError, match=f"workers={workers} is not possible"):
        split_cores(_machine(2), workers)


@given(st.data())
def test_no_core_is_split_or_given_twice_and_nobody_crosses_without_need(data: st.DataObject) -> None:
    kinds = st.sampled_from(["performance", "efficiency"])
    places = data.draw(st.lists(st.tuples(st.integers(0, 3), kinds), min_size=1, max_size=24))
    cores = [Core(cpus=(c, c + 100), socket=socket, kind=kind) for c, (socket, kind) in enumerate(places)]
    workers = data.draw(st.integers(1, len(cores)))

    shares = split_cores(cores, workers)

    assert len(shares) == workers
    assert all(shares)
    given_out = [core for share in shares for core in share]
    assert len(set(given_out)) == len(given_out)
    assert set(given_out) <= set(cores)
    if workers >= len({core.socket for core in cores}):
        assert all(len({core.socket for core in share}) == 1 for share in shares)
    for socket in {core.socket for core in given_out}:
        lengths = [len(share) for share in shares if {core.socket for core in share} == {socket}]
        if workers >= len({core.socket for core in cores}):
            assert max(lengths) - min(lengths) <= 1
