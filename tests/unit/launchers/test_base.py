import pickle

import pytest

from boxwright.core.errors import UsageError
from boxwright.core.world import World
from boxwright.launchers.base import WorkerFailed, WorkerSpec, check_one_machine


def spec(rank: int, count: int, **more: int) -> WorkerSpec:
    return WorkerSpec(**{"rank": rank, "local_rank": rank, "world_size": count, "local_world_size": count, **more})


def test_a_spec_becomes_a_world_and_variables():
    worker = WorkerSpec(rank=1, local_rank=1, world_size=2, local_world_size=2, cores=(4, 5), env=(("A", "b"),))

    world = worker.world(master_port=4000)
    variables = worker.variables(world)

    assert (
        world
        == World(rank=1, local_rank=1, world_size=2, local_world_size=2, master_port=4000, cores=(4, 5))
        == World.from_env(variables)
    )
    assert (variables["OMP_NUM_THREADS"], variables["A"]) == ("1", "b")


@pytest.mark.parametrize("name", ["RANK", "MASTER_PORT", "OMP_NUM_THREADS", "BOXWRIGHT_CORES"])
def test_variables_of_the_launcher_cannot_be_set_beside_it(name: str):
    with pytest.raises(UsageError, match=f"sets {name}"):
        WorkerSpec(env=((name, "1"),))


def test_no_threads_is_refused():
    with pytest.raises(UsageError, match="threads=0"):
        WorkerSpec(threads=0)


def test_all_ranks_of_one_machine_may_come_in_any_order():
    check_one_machine([spec(1, 2), spec(0, 2)])


@pytest.mark.parametrize(
    "workers",
    [
        [],
        [spec(0, 2)],
        [spec(0, 2), spec(0, 2)],
        [spec(0, 2), spec(1, 3)],
        [spec(0, 2), spec(1, 2, node_rank=1)],
    ],
    ids=["none", "one missing", "one twice", "sizes differ", "two machines"],
)
def test_workers_that_are_not_one_whole_world_are_refused(workers: list[WorkerSpec]):
    with pytest.raises(UsageError):
        check_one_machine(workers)


def test_a_failure_can_be_pickled():
    error = WorkerFailed("Worker 3 went", rank=3, kind="death", exit_code=2, status=-9)

    copy = pickle.loads(pickle.dumps(error))

    assert (str(copy), copy.rank, copy.kind, copy.exit_code, copy.status) == ("Worker 3 went", 3, "death", 2, -9)
