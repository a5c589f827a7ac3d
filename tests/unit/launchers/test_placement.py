from pathlib import Path

import pytest
from support.machines import lay_out

from boxwright.core.cpu import Core, Cpu, read_cpu
from boxwright.core.errors import UsageError
from boxwright.launchers.placement import make_workers


def machine(cores: int, *, allowed: tuple[int, ...] | None = None, quota: float | None = None) -> Cpu:
    """One socket; core 0 has the logical cpus 0 and `cores`, and so on."""
    every = tuple(Core(cpus=(c, c + cores)) for c in range(cores))
    may = tuple(range(2 * cores)) if allowed is None else allowed
    return Cpu(model="", vendor="", isa=frozenset(), all_cores=every, allowed=may, quota=quota)


def test_each_worker_knows_its_place_and_has_whole_cores():
    workers = make_workers(machine(4), 2)

    assert [(w.rank, w.local_rank, w.world_size, w.local_world_size, w.node_rank) for w in workers] == [
        (0, 0, 2, 2, 0),
        (1, 1, 2, 2, 0),
    ]
    assert [w.cores for w in workers] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert [w.threads for w in workers] == [2, 2]


def test_the_mask_limits_the_cores():
    workers = make_workers(machine(4, allowed=(1, 2, 3, 6)), 2)

    assert [w.cores for w in workers] == [(1, 2, 6), (3,)]
    assert [w.threads for w in workers] == [2, 1]


def test_a_quota_limits_the_threads_but_not_the_cores():
    workers = make_workers(machine(8, quota=3.0), 2)

    assert [len(w.cores) for w in workers] == [8, 8]
    assert [w.threads for w in workers] == [2, 1]


def test_a_real_container_quota_is_respected(tmp_path: Path):
    cpu = read_cpu(lay_out("container_cgroup2_quota", tmp_path))

    (worker,) = make_workers(cpu, 1)

    assert (cpu.quota, worker.threads, len(worker.cores)) == (1.5, 1, 8)


def test_workers_stay_inside_a_socket(tmp_path: Path):
    cpu = read_cpu(lay_out("xeon_sapphire_rapids", tmp_path))

    workers = make_workers(cpu, 2 * len(cpu.sockets))

    assert len(cpu.sockets) > 1
    assert all(len({cpu.core_of(one).socket for one in w.cores}) == 1 for w in workers)


@pytest.mark.parametrize(
    ("cpu", "processes", "message"),
    [
        (
            machine(2),
            3,
            r"num_processes=3 .* 2 .* mask\. Use num_processes=2",
        ),
        (machine(8, quota=2.5), 3, "quota of 2.5"),
        (machine(2), 0, "num_processes=0 is not possible"),
    ],
)
def test_too_many_or_too_few_processes_are_refused(cpu: Cpu, processes: int, message: str):
    with pytest.raises(UsageError, match=message):
        make_workers(cpu, processes)


def test_cpus_can_be_named_for_each_process():
    workers = make_workers(machine(4), 2, cpu_for_each_process=[[4, 0, 0], (1, 2, 3)])

    assert [w.cores for w in workers] == [(0, 4), (1, 2, 3)]
    assert [w.threads for w in workers] == [1, 3]  # 0 and 4 are twins


def test_threads_can_be_named():
    assert [w.threads for w in make_workers(machine(4), 2, threads=4)] == [4, 4]


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[0]], "has 1 lists for num_processes=2"),
        ([[0], []], "gives process 1 no cpu"),
        ([[0], [9]], "No cpu 9 is online here"),
        ([[0], [3]], "names cpu 3, which this process may not use"),
        ([[0, 1], [1, 2]], "gives cpu 1 to processes 0 and 1"),
    ],
)
def test_named_cpus_that_do_not_fit_are_refused(lists: list[list[int]], message: str):
    with pytest.raises(UsageError, match=message):
        make_workers(machine(4, allowed=(0, 1, 2)), 2, cpu_for_each_process=lists)


def test_processes_may_share_cpus_when_that_is_said():
    workers = make_workers(machine(2), 3, cpu_for_each_process=[[0], [0], [1]], allow_overlap=True)

    assert [w.cores for w in workers] == [(0,), (0,), (1,)]
    with pytest.raises(UsageError, match="needs cpu_for_each_process"):
        make_workers(machine(2), 2, allow_overlap=True)
