"""A launch on an engine, with a fake engine whose machines are threads of this test."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from boxwright.core.cpu import Core, Cpu
from boxwright.core.errors import UsageError
from boxwright.core.world import World
from boxwright.launchers.agent import find_interface, serve
from boxwright.launchers.base import WorkerFailed, WorkerSpec
from boxwright.launchers.conductor import run_on_engine
from boxwright.launchers.engine import Terms
from boxwright.launchers.payload import pack
from boxwright.launchers.placement import fit_cores, make_workers_anywhere, settle_here
from boxwright.launchers.restart import Restart
from boxwright.launchers.wire import Invitation, Listener


class FakeEngine:
    """Agents in threads, on machines that are only names."""

    def __init__(self, machines: list[str]) -> None:
        self.machines = machines
        self.cpus = 1
        self.count = 0
        self.starts = 0
        self._threads: list[threading.Thread] = []

    def listen(self) -> Listener:
        return Listener("127.0.0.1")

    def place(self, invitation: Invitation, count: int, least: int, wait: Callable[[float], None]) -> "FakeEngine":
        self.starts += 1
        self.count = min(count, len(self.machines))
        if self.count < least:
            raise UsageError(f"There is room for {self.count} of {count}.")
        self._threads = [
            threading.Thread(target=serve, args=(invitation, slot, node))
            for slot, node in enumerate(self.machines[: self.count])
        ]
        for thread in self._threads:
            thread.start()
        return self

    def failure(self) -> str | None:
        return None

    def close(self) -> None:
        for thread in self._threads:
            thread.join()


def run(engine: FakeEngine, job: Callable[[World], object], count: int, **terms: object) -> object:
    return run_on_engine(pack(job, "The job"), make_workers_anywhere(count), engine=engine, terms=Terms(**terms))  # type: ignore[arg-type]


def test_ranks_of_one_machine_follow_each_other_whatever_the_order_of_slots(tmp_path: Path):
    def job(world: World) -> None:
        place = (world.node_rank, world.local_rank, world.local_world_size)
        (tmp_path / str(world.rank)).write_text(repr(place))

    run(FakeEngine(["a", "b", "a"]), job, 3)

    places = [(tmp_path / str(rank)).read_text() for rank in range(3)]
    assert places == ["(0, 0, 2)", "(0, 1, 2)", "(1, 0, 1)"]


def test_fewer_machines_make_a_smaller_world_where_allowed():
    def job(world: World) -> int:
        return world.world_size

    assert run(FakeEngine(["a", "b"]), job, 3, min_workers=2) == 2
    with pytest.raises(UsageError, match="room for 2 of 3"):
        run(FakeEngine(["a", "b"]), job, 3)


def test_a_restart_asks_the_engine_again():
    engine = FakeEngine(["a"])

    def job(world: World) -> str:
        if os.environ["BOXWRIGHT_ATTEMPT"] == "0":
            os._exit(1)
        return os.environ["BOXWRIGHT_ATTEMPT"]

    assert run(engine, job, 1, restart=Restart(max_restarts=1)) == "1"
    assert engine.starts == 2


def test_agents_that_never_call_are_told():
    class Silent(FakeEngine):
        def place(self, invitation: Invitation, count: int, least: int, wait: Callable[[float], None]) -> FakeEngine:
            self.count = count
            return self

    with pytest.raises(WorkerFailed, match=r"Only 0 of 2 agents have called within 0\.5 s") as caught:
        run(Silent(["a", "b"]), lambda world: None, 2, start_timeout_s=0.5)
    assert caught.value.kind == "death"


def test_what_the_engine_says_of_a_lost_agent_is_told():
    class Broken(FakeEngine):
        def place(self, invitation: Invitation, count: int, least: int, wait: Callable[[float], None]) -> FakeEngine:
            self.count = count
            return self

        def failure(self) -> str | None:
            return "No module named 'boxwright'"

    with pytest.raises(WorkerFailed, match="An agent was lost before its worker started: No module named 'boxwright'"):
        run(Broken(["a"]), lambda world: None, 1)


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [({"min_workers": 3}, "min_workers=3 does not fit 2 workers"), ({"start_timeout_s": 0}, "leaves no time to start")],
)
def test_terms_that_contradict_the_workers_are_refused(terms: dict[str, object], sentence: str):
    with pytest.raises(UsageError, match=sentence):
        run(FakeEngine(["a", "b"]), lambda world: None, 2, **terms)


def test_a_plan_is_told_of_restarts_and_of_fewer_workers():
    terms = Terms(restart=Restart(max_restarts=2), min_workers=1)
    assert terms.notes(4) == [
        "after a death all processes start again, 2 times at most",
        "where there is no room for 4 processes, 1 will do; numbers change a little then",
    ]
    assert Terms(min_workers=4).notes(4) == []


CPU = Cpu(
    model="",
    vendor="",
    isa=frozenset(),
    all_cores=tuple(Core(cpus=(i, i + 4)) for i in range(4)),
    allowed=tuple(range(8)),
)


@pytest.mark.parametrize(
    ("local", "size", "cpus", "cores", "threads"),
    [
        (0, 1, 8, (0, 1, 2, 3, 4, 5, 6, 7), 4),
        (1, 2, 4, (2, 3, 6, 7), 2),
        (1, 2, 3, (2, 3, 6, 7), 2),  # nothing is left that another worker of this size could use
        (1, 2, 2, (), 1),  # others may have the rest of the machine
        (5, 6, 1, (), 1),  # more workers than cores
    ],
)
def test_a_worker_gets_cores_of_the_machine_where_it_lands(
    local: int, size: int, cpus: int, cores: tuple[int, ...], threads: int
):
    spec = WorkerSpec(rank=local, local_rank=local, world_size=size, local_world_size=size, anywhere=True)

    assert settle_here(spec, CPU, cpus) == replace(spec, cores=cores, threads=threads, anywhere=False)


@pytest.mark.parametrize(
    ("machines", "workers", "cpus"),
    [([8, 8], 2, 8), ([8, 8], 3, 4), ([2, 1], 2, 1), ([16, 4], 1, 16), ([1], 2, 0), ([], 1, 0)],
)
def test_workers_get_as_many_cpus_as_all_machines_have_room_for(machines: list[int], workers: int, cpus: int):
    assert fit_cores(machines, workers) == cpus


def test_an_address_that_nobody_has_belongs_to_no_interface():
    assert find_interface("203.0.113.77") is None
