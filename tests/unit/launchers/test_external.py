import os

import pytest

from boxwright.core.cpu import Core, Cpu, read_cpu
from boxwright.core.errors import UsageError
from boxwright.core.world import World
from boxwright.launchers.base import WorkerSpec
from boxwright.launchers.external import ExternalLauncher, find_own_worker, from_environment
from boxwright.launchers.subprocess_ import SubprocessLauncher

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "1234",
}
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "2",
}
PYTORCHJOB = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
FOUR_CORES = Cpu(
    model="",
    vendor="",
    isa=frozenset(),
    all_cores=tuple(Core(cpus=(c, c + 4)) for c in range(4)),
    allowed=tuple(range(8)),
)


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("env", "rank", "size"), [(TORCHRUN, 3, 4), (SLURM, 1, 2), (PYTORCHJOB, 1, 2)])
def test_a_world_that_others_made_is_found(env: dict[str, str], rank: int, size: int):
    world = from_environment(env)

    assert world is not None
    assert (world.rank, world.world_size) == (rank, size)


def test_a_world_of_one_counts_when_it_was_said():
    assert from_environment({"RANK": "0", "WORLD_SIZE": "1"}) == World()
    assert from_environment({}) is None


def test_workers_of_ours_are_not_external_unless_somebody_launched_again_inside():
    def job(world: World) -> list[World | None]:
        env = {**os.environ, "MASTER_PORT": "1"}  # as torchrun would have changed it
        return [from_environment(), from_environment(env)]

    ours, inside = SubprocessLauncher().run(job, [WorkerSpec()])

    assert ours is None
    assert inside is not None


def test_under_torchrun_the_machine_is_shared_out():
    world = World.from_env(TORCHRUN)

    worker = find_own_worker(world, FOUR_CORES, env=TORCHRUN)

    assert worker.world(master_addr="node0", master_port=1234) == World.from_env(
        {**TORCHRUN, "BOXWRIGHT_CORES": "2,3,6,7"}
    )
    assert worker.threads == 2
    assert find_own_worker(world, FOUR_CORES, threads=1, env=TORCHRUN).threads == 1


@pytest.mark.parametrize("env", [SLURM, PYTORCHJOB], ids=["slurm", "pytorchjob"])
def test_where_the_mask_is_ours_alone_it_is_taken_as_it_is(env: dict[str, str]):
    worker = find_own_worker(World.from_env(env), FOUR_CORES, env=env)

    assert (worker.cores, worker.threads) == (tuple(range(8)), 4)


@pytest.mark.usefixtures("torchrun")
def test_the_job_runs_here_on_its_cores_and_all_is_put_back():
    mask = os.sched_getaffinity(0)
    core = read_cpu().allowed[0]
    worker = find_own_worker(World.from_env(TORCHRUN), FOUR_CORES, threads=2)
    worker = WorkerSpec(**{name: getattr(worker, name) for name in worker.__slots__ if name != "cores"}, cores=(core,))
    before = dict(os.environ)

    def job(world: World) -> tuple[int, World, set[int], str]:
        return os.getpid(), world, os.sched_getaffinity(0), os.environ["OMP_NUM_THREADS"]

    seen = ExternalLauncher().run(job, [worker])

    assert seen == (os.getpid(), World.from_env({**TORCHRUN, "BOXWRIGHT_CORES": str(core)}), {core}, "2")
    assert os.sched_getaffinity(0) == mask
    assert dict(os.environ) == before


@pytest.mark.usefixtures("torchrun")
def test_a_plan_for_another_world_is_refused():
    with pytest.raises(UsageError, match=r"started as worker 3 of 4, but the plan has workers \[0\] of \[1\]"):
        ExternalLauncher().run(lambda world: None, [WorkerSpec()])


def test_without_a_launcher_it_says_so(monkeypatch: pytest.MonkeyPatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(UsageError, match="No launcher has started this process"):
        ExternalLauncher().run(lambda world: None, [WorkerSpec()])
