"""A launch on an engine, with a fake one whose machines are threads of this test."""

import atexit
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import FakeEngine

from boxwright.core.cpu import Core, Cpu
from boxwright.core.errors import UsageError
from boxwright.core.world import World
from boxwright.launchers.base import WorkerFailed, WorkerSpec
from boxwright.launchers.engine import EngineLauncher
from boxwright.launchers.files import carried_file
from boxwright.launchers.placement import fit_cores, settle_here
from boxwright.launchers.restart import Restart
from boxwright.launchers.wire import Listener


def test_ranks_of_one_machine_follow_each_other_whatever_the_order_of_slots(tmp_path: Path):
    def job(world: World) -> None:
        place = (world.node_rank, world.local_rank, world.local_world_size)
        (tmp_path / str(world.rank)).write_text(repr(place))

    FakeEngine(["a", "b", "a"]).run(job, 3)

    places = [(tmp_path / str(rank)).read_text() for rank in range(3)]
    assert places == ["(0, 0, 2)", "(0, 1, 2)", "(1, 0, 1)"]


def test_fewer_machines_make_a_smaller_world_where_allowed():
    def job(world: World) -> int:
        return world.world_size

    assert FakeEngine(["a", "b"]).run(job, 3, min_workers=2) == 2
    with pytest.raises(UsageError, match="room for 2"):
        FakeEngine(["a", "b"]).run(job, 3)


def test_a_restart_asks_the_engine_again():
    engine = FakeEngine(["a"])

    def job(world: World) -> str:
        if os.environ["BOXWRIGHT_ATTEMPT"] == "0":
            os._exit(1)
        return os.environ["BOXWRIGHT_ATTEMPT"]

    assert engine.run(job, 1, restart=Restart(max_restarts=1)) == "1"
    assert engine.starts == 2


def test_agents_that_never_call_end_the_launch():
    with pytest.raises(WorkerFailed, match=r"Only 0 of 2 agents .* 0\.5 s") as caught:
        FakeEngine(["a", "b"], calls=False).run(lambda world: None, 2, start_timeout_s=0.5)
    assert caught.value.kind == "death"


def test_the_engines_message_about_a_lost_agent_is_shown():
    engine = FakeEngine(["a"], calls=False, lost="No module named 'boxwright'")
    with pytest.raises(WorkerFailed, match=r"agent was lost .*'boxwright'"):
        engine.run(lambda world: None, 1)


@pytest.mark.parametrize(
    ("settings", "fact"),
    [
        ({"min_workers": 3}, "min_workers=3 .* 2 workers"),
        ({"start_timeout_s": 0}, "start_timeout_s=0"),
        ({"cores_per_worker": 0}, "cores_per_worker=0"),
    ],
)
def test_settings_that_contradict_the_workers_are_refused(settings: dict[str, Any], fact: str):
    with pytest.raises(UsageError, match=fact):
        FakeEngine(["a", "b"]).run(lambda world: None, 2, **settings)


def test_a_plan_shows_restarts_and_fewer_workers():
    restarts, fewer = EngineLauncher(restart=Restart(max_restarts=2), min_workers=1).notes(4)
    assert "up to 2 times" in restarts
    assert "without room for 4 processes, 1" in fewer
    assert EngineLauncher(min_workers=4).notes(4) == []


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, ...]:
    """A large file and an empty one, and a temporary folder for the machines."""
    (tmp_path / "machines").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "machines"))
    (tmp_path / "large").write_bytes(bytes(range(256)) * 80_000)
    (tmp_path / "empty").touch()
    return tmp_path / "large", tmp_path / "empty"


def test_workers_find_the_files_which_are_gone_afterwards(files: tuple[Path, ...]):
    def job(world: World) -> list[bytes]:
        return [carried_file(name).read_bytes() for name in ("large", "empty")]

    assert FakeEngine(["a", "a"]).run(job, 2, files=files) == [file.read_bytes() for file in files]
    assert list((files[0].parent / "machines").iterdir()) == []


def test_a_machine_without_room_for_the_files_is_an_error(files: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("boxwright.launchers.agent.fetch_files", fail)
    with pytest.raises(WorkerFailed, match=r"No space left on device.* set TMPDIR") as caught:
        FakeEngine(["a", "a"]).run(lambda world: None, 2, files=files)
    assert caught.value.kind == "exception"


def test_a_file_that_the_driver_can_not_send_is_an_error(files: tuple[Path, ...]):
    class Late(FakeEngine):
        def listen(self) -> Listener:
            files[1].unlink()  # it was there when the launch began
            return super().listen()

    with pytest.raises(WorkerFailed, match="driver has closed the connection"):
        Late(["a"]).run(lambda world: None, 1, files=files)


def test_a_worker_of_two_machines_is_not_blamed_for_an_error_that_another_is_still_reporting(tmp_path: Path):
    def job(world: World) -> None:
        if world.rank == 0:
            wait_for(tmp_path / "reported")
            raise RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer")
        atexit.register(threading.Event().wait, 60)
        atexit.register((tmp_path / "reported").touch)  # called first
        raise ValueError("the reason")

    def wait_for(file: Path) -> None:
        while not file.exists():
            threading.Event().wait(0.01)

    with pytest.raises(WorkerFailed, match="Worker 1 failed: ValueError: the reason"):
        FakeEngine(["a", "b"]).run(job, 2)


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
