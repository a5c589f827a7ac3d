import os

import pytest

from boxwright.core.world import World
from boxwright.launchers.base import WorkerSpec
from boxwright.launchers.external import from_environment, pinned
from boxwright.launchers.local import SubprocessLauncher

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


def test_a_process_runs_on_its_cores_and_all_is_restored(monkeypatch: pytest.MonkeyPatch):
    mask = os.sched_getaffinity(0)
    monkeypatch.setattr(os, "cpu_count", lambda: len(mask))

    with pinned([min(mask)]):
        assert os.sched_getaffinity(0) == {min(mask)}

    assert os.sched_getaffinity(0) == mask


def test_a_mask_that_the_launcher_has_cut_stays(monkeypatch: pytest.MonkeyPatch):
    mask = os.sched_getaffinity(0)
    monkeypatch.setattr(os, "cpu_count", lambda: len(mask) + 1)

    with pinned([min(mask)]):
        assert os.sched_getaffinity(0) == mask
