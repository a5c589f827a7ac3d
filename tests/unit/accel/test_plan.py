"""The plan: a pure function of what is asked and what the machine has."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.machines import lay_out

from boxwright.accel.plan import Plan, Request
from boxwright.core.cpu import Core, Cpu, read_cpu
from boxwright.core.errors import UsageError
from boxwright.core.types import Precision
from boxwright.devices.support import DeviceFacts, Support
from boxwright.launchers.allocator import VARIABLES, Allocator


def make_cpu(cores: int = 4, isa: frozenset[str] = frozenset({"avx2", "bf16"})) -> Cpu:
    return Cpu(
        model="test", vendor="", isa=isa, all_cores=tuple(Core(cpus=(i,)) for i in range(cores)),
        allowed=tuple(range(cores)),
    )  # fmt: skip


def resolve(cpu: Cpu | None = None, facts: DeviceFacts | None = None, **wanted: Any) -> Plan:
    return Plan.resolve(Request(**wanted), cpu or make_cpu(), facts)


def test_processes_get_their_own_cores() -> None:
    plan = resolve(num_processes=2, batch=8)
    assert [(w.cores, w.threads) for w in plan.workers] == [((0, 1), 2), ((2, 3), 2)]
    assert plan.batch_per_process == 4
    assert plan.strategy == "subprocess"


def test_one_process_needs_nothing_to_start_it() -> None:
    assert resolve().strategy == "none"


def test_a_two_socket_machine_is_split_by_socket(tmp_path: Path) -> None:
    cpu = read_cpu(lay_out("xeon_sapphire_rapids", tmp_path))
    plan = resolve(cpu, num_processes=2, precision="bf16")
    assert [{cpu.core_of(one).socket for one in worker.cores} for worker in plan.workers] == [{0}, {1}]
    assert plan.precision_why == "bf16 runs on AMX"


def test_the_plan_is_frozen_and_prints_everything() -> None:
    plan = resolve(num_processes=2, precision="bfloat16", batch=8, auto_lr=True, channels_last=True)
    text = "\n".join(plan.lines())
    for part in ("cpu", "bf16", "2 (subprocess)", "cpus 0-1", "8 per step, 4 per process", "channels last", "times 2"):
        assert part in text
    assert plan.to_dict()["processes"] == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.batch = 3  # type: ignore[misc]


def test_bf16_without_instructions_works_with_a_warning() -> None:
    plan = resolve(make_cpu(isa=frozenset({"avx2"})), precision="bf16")
    assert plan.precision is Precision.BF16
    assert "slower than 32" in plan.precision_why
    assert f"bf16 ({plan.precision_why})" in "\n".join(plan.lines())


def test_full_precision_says_whether_bf16_has_instructions_here() -> None:
    assert "bf16 runs on AVX-512 BF16 instructions here" in resolve().precision_why
    assert "no instructions for bf16" in resolve(make_cpu(isa=frozenset())).precision_why


def test_the_allocator_is_set_for_processes_that_are_started_and_described_for_the_one_that_is_there() -> None:
    allocator = Allocator(name="glibc", variables=VARIABLES)
    alone = resolve(allocator=allocator)
    assert "gives freed memory back" in alone.allocator
    started = resolve(num_processes=2, allocator=allocator)
    assert "keeps freed memory" in started.allocator
    assert all(dict(worker.env)["MALLOC_MMAP_MAX_"] == "0" for worker in started.workers)
    assert f"allocator    {started.allocator}" in started.lines()
    other = Allocator(name="tcmalloc", note="preloaded, not changed")
    left = resolve(num_processes=2, allocator=other)
    assert left.allocator == "tcmalloc: preloaded, not changed"
    assert all(not worker.env for worker in left.workers)


def test_the_learning_rate_is_scaled_by_all_processes_of_all_machines() -> None:
    assert "as given" in "\n".join(resolve(num_processes=2).lines())
    plan = resolve(num_processes=2, auto_lr={"warmup_epochs": 3}, world_size=8)
    assert (plan.lr_factor, plan.lr_warmup_epochs) == (8.0, 3.0)
    assert "times 8, reached in 3 epochs (auto_lr)" in "\n".join(plan.lines())


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"precision": "17"}, "Unknown precision '17'"),
        ({"precision": "int8"}, "int8 is for inference"),
        ({"strategy": "rey"}, "Unknown launcher 'rey'"),
        ({"num_processes": 0}, "at least 1"),
        ({"num_processes": 5}, "needs as many physical cores"),
        ({"num_processes": 3, "batch": 8}, "by 3 processes.*6 or 9"),
        ({"num_processes": 2, "cpu_for_each_process": [[0]]}, "cpu_for_each_process"),
        ({"auto_lr": {}}, "Use True or"),
        ({"auto_lr": {"warmup_epoch": 3}}, "Did you mean 'warmup_epochs'"),
        ({"auto_lr": {"warmup_epochs": -1}}, "0 or more"),
        ({"facts": DeviceFacts(name="cuda", support=Support(ok=True)), "num_processes": 2}, "there are 1"),
    ],
)
def test_conflicts_are_refused_with_what_to_do(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve(**wanted)
