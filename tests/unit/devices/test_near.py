"""Processes go to the cores near their device."""

from pathlib import Path

import pytest

from boxwright.accel.plan import Plan, Request
from boxwright.core.cpu import Core, Cpu
from boxwright.devices.near import deal_near, pci_cpus
from boxwright.devices.support import DeviceFacts, Support


def make_cpu(cores: int = 8, sockets: int = 2) -> Cpu:
    each = cores // sockets
    return Cpu(
        model="test", vendor="", isa=frozenset(), allowed=tuple(range(2 * cores)),
        all_cores=tuple(Core(cpus=(i, i + cores), socket=i // each, node=i // each) for i in range(cores)),
    )  # fmt: skip


LEFT = (0, 1, 2, 3, 8, 9, 10, 11)
RIGHT = (4, 5, 6, 7, 12, 13, 14, 15)


def test_the_system_tells_which_cpus_are_near(tmp_path: Path) -> None:
    slot = tmp_path / "sys/bus/pci/devices/0000:9a:00.0"
    slot.mkdir(parents=True)
    (slot / "local_cpulist").write_text("4-7,12-15\n")
    assert pci_cpus(0, 0x9A, 0, tmp_path) == RIGHT
    assert pci_cpus(0, 0x9B, 0, tmp_path) == ()


def test_processes_of_one_side_share_its_cores() -> None:
    shares = deal_near(make_cpu(), 4, [LEFT, LEFT, RIGHT, RIGHT])
    assert shares == [(0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15)]


def test_the_order_of_the_devices_counts() -> None:
    assert deal_near(make_cpu(), 2, [RIGHT, LEFT]) == [RIGHT, LEFT]


@pytest.mark.parametrize("near", [(), [LEFT], [(), ()], [LEFT + RIGHT] * 2])
def test_without_knowledge_the_split_is_even(near: list[tuple[int, ...]]) -> None:
    assert deal_near(make_cpu(), 2, near) is None


def test_more_processes_than_cores_share_them() -> None:
    assert deal_near(make_cpu(2, 1), 8, ()) == [(0, 1, 2, 3)] * 8


def test_cpus_outside_the_mask_are_left_out() -> None:
    cpu = Cpu(model="", vendor="", isa=frozenset(), allowed=(4, 5), all_cores=make_cpu().all_cores)
    assert deal_near(cpu, 2, [LEFT, RIGHT]) is None


def test_the_plan_puts_each_process_near_its_device_and_says_so() -> None:
    facts = DeviceFacts(
        name="cuda", support=Support(ok=True), count=2, near_cpus=(RIGHT, LEFT), environment={"A_VARIABLE": "1"}
    )
    plan = Plan.resolve(Request(), make_cpu(), facts)
    assert [worker.cores for worker in plan.workers] == [RIGHT, LEFT]
    assert [worker.threads for worker in plan.workers] == [4, 4]
    assert "each process is on cpus near its device" in plan.notes
    assert all(("A_VARIABLE", "1") in worker.env for worker in plan.workers)


def test_eight_cards_on_two_cores_get_a_plan() -> None:
    plan = Plan.resolve(Request(batch=64), make_cpu(2, 1), DeviceFacts(name="hpu", support=Support(ok=True), count=8))
    assert plan.processes == 8
    assert {(worker.cores, worker.threads) for worker in plan.workers} == {((0, 1, 2, 3), 1)}
    assert "processes share the cpus" in plan.notes
