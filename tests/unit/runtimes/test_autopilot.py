from pathlib import Path
from typing import Any

import pytest
from support.machines import NAMES, lay_out

from boxwright.core.cpu import Cpu, read_cpu
from boxwright.core.errors import UsageError
from boxwright.runtimes.autopilot import Arrangement, choose
from boxwright.runtimes.base import Tuning


@pytest.fixture
def machine(tmp_path: Path) -> Any:
    return lambda name: read_cpu(lay_out(name, tmp_path / name))


@pytest.mark.parametrize(
    ("name", "hint", "runtime", "expected"),
    [
        ("kvm_guest_epyc", "latency", "openvino", "1 instance x 2 threads"),
        ("kvm_guest_epyc", "throughput", "openvino", "1 instance x 2 streams x 1 thread"),
        ("kvm_guest_epyc", "throughput", "eager", "2 instances x 1 thread"),
        ("xeon_sapphire_rapids", "latency", "openvino", "1 instance x 8 threads"),
        ("xeon_sapphire_rapids", "throughput", "openvino", "2 instances x 8 streams x 1 thread"),
        ("xeon_sapphire_rapids", "throughput", "eager", "8 instances x 2 threads"),
        ("laptop_i7_1260p", "latency", "eager", "1 instance x 4 threads"),
        ("laptop_i7_1260p", "throughput", "openvino", "1 instance x 12 streams x 1 thread"),
        ("container_cgroup2_quota", "latency", "openvino", "1 instance x 1 thread"),
        ("pod_cgroup2_parent_quota", "throughput", "eager", "3 instances x 1 thread"),
    ],
)
def test_the_machine_decides(machine: Any, name: str, hint: Any, runtime: str, expected: str) -> None:
    assert choose(machine(name), hint=hint, runtime=runtime).name == expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hint", ["latency", "throughput"])
@pytest.mark.parametrize("runtime", ["openvino", "eager"])
@pytest.mark.parametrize("movable", [True, False])
def test_no_arrangement_asks_for_more_than_there_is(
    machine: Any, name: str, hint: Any, runtime: str, movable: bool
) -> None:
    cpu: Cpu = machine(name)
    found = choose(cpu, hint=hint, runtime=runtime, movable=movable)
    taken = [c for share in found.cpus for c in share]
    assert len(taken) == len(set(taken))
    assert set(taken) <= set(cpu.allowed)
    assert 1 <= found.side_by_side * found.threads <= cpu.usable_cores
    assert found.here == (found.instances == 1 and set(taken) == set(cpu.allowed))
    if runtime == "eager":
        assert found.streams == 1
    elif not movable:
        assert found.here


def test_the_explanation_names_what_was_left_out(machine: Any) -> None:
    def explain(name: str, hint: Any = "latency") -> str:
        return choose(machine(name), hint=hint, runtime="openvino").explain()

    text = explain("laptop_i7_1260p")
    assert text.startswith("For latency: 1 instance x 4 threads, in 1 process of their own (cpus 0-7).")
    assert "8 small cores are left out" in text
    assert explain("kvm_guest_epyc").startswith("For latency: 1 instance x 2 threads, in this process (cpus 0-1).")
    assert "The quota of 1.5 cpus pays for 1" in explain("container_cgroup2_quota")
    assert "All in socket 0" in explain("xeon_sapphire_rapids")
    assert "One instance for each of the 2 NUMA nodes" in explain("xeon_sapphire_rapids", "throughput")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hint": "latancy"}, "Unknown hint 'latancy'. Did you mean 'latency'"),
        ({"runtime": "openvine"}, "Did you mean 'openvino'"),
    ],
)
def test_wrong_requests_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose(read_cpu(), **({"hint": "latency", "runtime": "openvino"} | wrong))


def test_an_arrangement_becomes_a_tuning() -> None:
    one = Arrangement(hint="throughput", cpus=((0, 1),), threads=2, streams=3)
    assert one.tuning == Tuning(threads=2, hint="throughput", streams=3, cpus=((0, 1),))
    assert Arrangement(hint="latency", cpus=((0,),), threads=1, here=True).tuning == Tuning(threads=1)
