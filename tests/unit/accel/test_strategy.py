"""Which launcher settings lead to, and what the plan says of workers that are elsewhere."""

from typing import Any

import pytest

from boxwright.accel.plan import Plan, Request
from boxwright.accel.strategy import make_launcher
from boxwright.core.cpu import Core, Cpu
from boxwright.core.errors import UsageError
from boxwright.devices.support import DeviceFacts, Support

CPU = Cpu(model="", vendor="", isa=frozenset({"avx2"}), all_cores=(Core(cpus=(0,)),), allowed=(0,))


def test_the_default_starts_processes_here():
    assert make_launcher().name == "subprocess"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"strategy": "subprocess", "address": "a:1"}, "address='a:1' is for strategy 'ray', not 'subprocess'"),
        ({"strategy": "spawn", "min_workers": 1}, "min_workers=1 is for strategy 'ray' and 'spark', not 'spawn'"),
        ({"cores_per_worker": 2}, "use cpu_for_each_process"),
        ({"strategy": "spark", "spread": "pack"}, "spread='pack' is for strategy 'ray', not 'spark'"),
        ({"strategy": "rey"}, "Did you mean 'ray'"),
        ({"max_restarts": -1}, "max_restarts=-1 is not possible"),
    ],
)
def test_settings_that_do_not_belong_together_are_refused(settings: dict[str, Any], sentence: str):
    with pytest.raises(UsageError, match=sentence):
        make_launcher(**settings)


@pytest.mark.parametrize("strategy", ["ray", "spark"])
@pytest.mark.parametrize("processes", [1, 4])
def test_an_engine_may_have_more_processes_than_this_machine_has_cores(strategy: str, processes: int):
    plan = Plan.resolve(Request(strategy=strategy, num_processes=processes, launcher_notes=["2 will do"]), CPU)

    assert (plan.strategy, plan.processes) == (strategy, processes)
    assert all(worker.anywhere for worker in plan.workers)
    assert f"  each       its share of the machine where {strategy} starts it" in plan.lines()
    assert "note         2 will do" in plan.lines()
    assert plan.to_dict()["workers"][0] == {"rank": 0, "cpus": [], "threads": None}


@pytest.mark.parametrize(
    ("settings", "device", "sentence"),
    [
        ({"strategy": "ray", "cpu_for_each_process": [[0], [0]]}, "cpu", "names cpus of this machine"),
        ({"strategy": "spark"}, "cuda", "hands out cpus only"),
        ({"num_processes": 1, "launcher_notes": ["it starts again"]}, "cpu", "for processes that are started"),
    ],
)
def test_what_an_engine_can_not_do_is_refused(settings: dict[str, Any], device: str, sentence: str):
    facts = DeviceFacts(name=device, support=Support(ok=True), count=2)
    with pytest.raises(UsageError, match=sentence):
        Plan.resolve(Request(**({"num_processes": 2} | settings)), CPU, facts)
