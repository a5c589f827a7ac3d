from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boxwright.core.errors import UsageError
from boxwright.core.world import World, current

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "1234",
}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "1234",
}
SIXTH_OF_EIGHT = World(
    rank=5, world_size=8, local_rank=1, local_world_size=4, node_rank=1, master_addr="node0", master_port=1234
)


@pytest.mark.parametrize("env", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_a_launcher_describes_the_world(env: dict[str, str]):
    assert World.from_env(env) == SIXTH_OF_EIGHT


def test_without_variables_the_process_is_alone():
    assert World.from_env({"PATH": "/bin"}) == World.single()
    assert World.single().is_first
    assert World.single(cores=(2, 3)).cores == (2, 3)


def test_only_the_worker_with_rank_0_is_first():
    assert World.from_env(TORCHRUN | {"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0"}).is_first
    assert not World.from_env(TORCHRUN).is_first


def test_what_is_not_told_is_taken_for_one_machine():
    expected = World(rank=2, world_size=4, local_rank=2, local_world_size=4)
    assert World.from_env({"RANK": "2", "WORLD_SIZE": "4"}) == expected


POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}


def test_a_pod_of_a_pytorchjob_is_a_machine_of_its_own():
    world = World.from_env({**POD, "RANK": "2", "WORLD_SIZE": "3"})
    assert (world.rank, world.world_size) == (2, 3)
    assert (world.local_rank, world.local_world_size, world.node_rank) == (0, 1, 2)
    assert (world.master_addr, world.master_port) == ("job-master-0", 23456)


def test_a_pod_with_several_workers_says_so():
    told = {**POD, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    for env in (told, {**told, "LOCAL_RANK": "1"}):  # by hand, and as torchrun does
        world = World.from_env(env)
        assert (world.local_rank, world.local_world_size, world.node_rank) == (1, 2, 1)


def test_pods_need_to_know_where_the_first_one_is():
    with pytest.raises(UsageError, match="need MASTER_ADDR"):
        World.from_env({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "RANK": "0", "WORLD_SIZE": "2"})


def test_local_rank_and_machine_follow_from_the_rank():
    env = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "1234"}
    assert World.from_env(env) == SIXTH_OF_EIGHT


def test_node_rank_is_read_where_group_rank_is_missing():
    env = {name: value for name, value in TORCHRUN.items() if name != "GROUP_RANK"}
    assert World.from_env(env | {"NODE_RANK": "1"}).node_rank == 1


def test_torch_variables_win_over_those_of_slurm():
    assert World.from_env(SRUN | {"RANK": "0", "WORLD_SIZE": "1"}).world_size == 1


def test_machines_of_a_slurm_step_may_have_different_numbers_of_tasks():
    env = SRUN | {"SLURM_PROCID": "4", "SLURM_NTASKS": "5", "SLURM_LOCALID": "0", "SLURM_NODEID": "2"}
    assert World.from_env(env | {"SLURM_STEP_TASKS_PER_NODE": "2(x2),1"}).local_world_size == 1


def test_the_four_slurm_variables_are_enough_on_one_machine():
    env = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1", "SLURM_NODEID": "0"}
    assert World.from_env(env) == World(rank=1, world_size=2, local_rank=1, local_world_size=2)


def test_a_slurm_batch_script_outside_srun_is_alone():
    batch = {name: value for name, value in SRUN.items() if name != "SLURM_STEP_ID"} | {"SLURM_PROCID": "0"}
    assert World.from_env(batch) == World.single()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "8"}, "RANK=8 does not fit WORLD_SIZE=8"),
        ({"RANK": "two"}, "RANK='two' can't be used"),
        ({"RANK": ""}, "RANK=''"),
        ({"RANK": "-1"}, "RANK='-1'"),
        ({"RANK": "1.0"}, "RANK='1.0'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE='0' .* 1 or more"),
        ({"LOCAL_RANK": "4"}, "LOCAL_RANK=4 does not fit LOCAL_WORLD_SIZE=4"),
        ({"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE=9 does not fit WORLD_SIZE=8"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE='0' .* 1 or more"),
        ({"RANK": "0"}, "LOCAL_RANK=1 does not fit RANK=0"),
        ({"GROUP_RANK": "5"}, "GROUP_RANK=5 does not fit LOCAL_WORLD_SIZE=4"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT='http'"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000"),
        ({"MASTER_ADDR": ""}, "8 workers on several machines need MASTER_ADDR"),
        ({"BOXWRIGHT_CORES": "1,x"}, "BOXWRIGHT_CORES='x'"),
    ],
)
def test_variables_that_make_no_sense_are_refused_by_name(changes: dict[str, str], message: str):
    with pytest.raises(UsageError, match=message):
        World.from_env(TORCHRUN | changes)


def test_a_contradiction_under_slurm_names_the_slurm_variables():
    with pytest.raises(UsageError, match="SLURM_PROCID=8 does not fit SLURM_NTASKS=8"):
        World.from_env(SRUN | {"SLURM_PROCID": "8"})


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is not set, but RANK='0'"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "RANK is not set, but WORLD_SIZE='2', LOCAL_RANK='1'"),
        ({"SLURM_PROCID": "0"}, "SLURM_NTASKS is not set, but SLURM_PROCID='0'"),
    ],
)
def test_half_a_description_is_refused(env: dict[str, str], message: str):
    with pytest.raises(UsageError, match=message):
        World.from_env(env)


def test_a_world_made_by_hand_is_checked_too():
    with pytest.raises(UsageError, match="rank=2 does not fit world_size=2"):
        World(rank=2, world_size=2, local_world_size=2)


def test_a_world_can_not_be_changed():
    with pytest.raises(FrozenInstanceError):
        World.single().rank = 1  # type: ignore[misc]


def test_current_reads_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("BOXWRIGHT_CORES", raising=False)
    assert current() == SIXTH_OF_EIGHT


@st.composite
def worlds(draw: st.DrawFn) -> World:
    nodes, local_size = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    node_rank, local_rank = draw(st.integers(0, nodes - 1)), draw(st.integers(0, local_size - 1))
    return World(
        rank=node_rank * local_size + local_rank,
        world_size=nodes * local_size,
        local_rank=local_rank,
        local_world_size=local_size,
        node_rank=node_rank,
        master_addr=draw(st.sampled_from(["127.0.0.1", "node-7", "fe80::1"])),
        master_port=draw(st.integers(1, 65535)),
        cores=draw(st.lists(st.integers(0, 255), unique=True, max_size=6).map(tuple)),
        store=draw(st.sampled_from(["", "/tmp/a folder:1/store"])),
    )


@settings(deadline=None)
@given(worlds())
def test_a_world_comes_back_equal_from_its_variables(world: World):
    assert World.from_env(world.to_env()) == world


def test_an_empty_core_list_hides_that_of_the_parent_process():
    inherited = {"BOXWRIGHT_CORES": "0,1"}
    assert World.from_env(inherited).cores == (0, 1)
    assert World.from_env(inherited | World.single().to_env()).cores == ()


def test_a_launcher_started_inside_a_worker_does_not_use_the_worker_s_store():
    inherited = World(master_port=4000, store="/tmp/store").to_env()
    assert World.from_env(inherited).store == "/tmp/store"
    assert World.from_env(inherited | {"MASTER_PORT": "29500"}).store == ""
