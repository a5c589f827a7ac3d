from pathlib import Path
from typing import Any

import pytest
import torch
from support.machines import NAMES, lay_out
from torch import nn

from boxwright.core.cpu import Cpu, read_cpu
from boxwright.core.errors import UsageError
from boxwright.runtimes.artifact import write_artifact
from boxwright.runtimes.autopilot import Arrangement, candidates, choose, open_arranged, tune
from boxwright.runtimes.base import Choice, Tuning
from boxwright.runtimes.instances import MultiInstance
from boxwright.runtimes.source import Source


@pytest.fixture
def machine(tmp_path: Path) -> Any:
    return lambda name: read_cpu(lay_out(name, tmp_path / name))


@pytest.mark.parametrize(
    ("name", "hint", "runtime", "expected"),
    [
        ("kvm_guest_epyc", "latency", "openvino", "1 instance x 2 threads"),
        ("kvm_guest_epyc", "throughput", "openvino", "1 instance x 2 streams x 1 threads"),
        ("kvm_guest_epyc", "throughput", "eager", "2 instances x 1 threads"),
        ("xeon_sapphire_rapids", "latency", "openvino", "1 instance x 8 threads"),
        ("xeon_sapphire_rapids", "throughput", "openvino", "2 instances x 8 streams x 1 threads"),
        ("xeon_sapphire_rapids", "throughput", "onnxruntime", "8 instances x 2 threads"),
        ("laptop_i7_1260p", "latency", "eager", "1 instance x 4 threads"),
        ("laptop_i7_1260p", "throughput", "openvino", "1 instance x 12 streams x 1 threads"),
        ("container_cgroup2_quota", "latency", "openvino", "1 instance x 1 threads"),
        ("pod_cgroup2_parent_quota", "throughput", "eager", "3 instances x 1 threads"),
    ],
)
def test_the_machine_decides(machine: Any, name: str, hint: Any, runtime: str, expected: str) -> None:
    assert choose(machine(name), hint=hint, runtime=runtime).name == expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hint", ["latency", "throughput"])
@pytest.mark.parametrize("runtime", ["openvino", "eager"])
def test_no_arrangement_asks_for_more_than_there_is(machine: Any, name: str, hint: Any, runtime: str) -> None:
    cpu: Cpu = machine(name)
    tries = candidates(cpu, hint=hint, runtime=runtime)
    assert tries[0] == choose(cpu, hint=hint, runtime=runtime)
    assert len({(a.cpus, a.threads, a.streams) for a in tries}) == len(tries) <= 16
    for a in tries:
        taken = [c for share in a.cpus for c in share]
        assert len(taken) == len(set(taken))
        assert set(taken) <= set(cpu.allowed)
        assert 1 <= a.instances * a.streams * a.threads <= cpu.usable_cores
        if runtime == "eager":
            assert a.streams == 1


def test_the_explanation_names_what_was_left_out(machine: Any) -> None:
    text = choose(machine("laptop_i7_1260p")).explain()
    assert text.startswith("For latency: 1 instance x 4 threads (cpus 0-7).")
    assert "8 small cores are left out" in text
    assert "The quota of 1.5 cpus pays for 1" in choose(machine("container_cgroup2_quota")).explain()
    assert "All in socket 0" in choose(machine("xeon_sapphire_rapids")).explain()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hint": "latancy"}, "Unknown hint 'latancy'. Did you mean 'latency'"),
        ({"batch": 0}, "batch=0 must be at least 1"),
        ({"runtime": "openvine"}, "Unknown runtime 'openvine'. Did you mean 'openvino'"),
    ],
)
def test_wrong_requests_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose(read_cpu(), **wrong)


def test_an_arrangement_becomes_a_tuning() -> None:
    one = Arrangement(hint="throughput", cpus=((0, 1),), threads=2, streams=3)
    assert one.tuning == Tuning(threads=2, hint="throughput", streams=3)
    assert Arrangement(hint="latency", cpus=((0,),), threads=1).tuning == Tuning(threads=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("openvino")
    path = tmp_path_factory.mktemp("autopilot") / "artifact"
    write_artifact(Source.of(nn.Linear(4, 2).eval(), (torch.ones(2, 4),)), Choice(runtime="openvino"), path)
    return path


@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.parametrize("hint", ["latency", "throughput"])
def test_tuning_times_every_try_and_names_the_fastest(folder: Path, hint: Any) -> None:
    first = min(read_cpu().allowed)
    tries = [
        Arrangement(hint=hint, cpus=((first,),), threads=1),
        Arrangement(hint=hint, cpus=((first,), (first,)), threads=1),
    ]
    before = torch.get_num_threads()
    tuned = tune(folder, hint, batch=5, rounds=3, arrangements=tries)
    assert list(tuned.times) == tries
    assert tuned.times[tuned.best].median_ms == min(t.median_ms for t in tuned.times.values())
    assert all(t.runs == 3 for t in tuned.times.values())
    assert tuned.explain().splitlines()[2].startswith(tuned.best.name)
    assert torch.get_num_threads() == before


def test_one_instance_runs_here_and_several_elsewhere(folder: Path) -> None:
    first = min(read_cpu().allowed)
    one = open_arranged(folder, Arrangement(hint="latency", cpus=((first,),), threads=1))
    two = open_arranged(folder, Arrangement(hint="latency", cpus=((first,), (first,)), threads=1))
    try:
        assert not isinstance(one, MultiInstance)
        assert isinstance(two, MultiInstance)
        inputs = [torch.rand(3, 4).numpy()]
        assert (one.run(inputs)[0] == two.run(inputs)[0]).all()
    finally:
        one.close()
        two.close()
