"""However a child ends, its parent learns why, and nothing stays behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from boxwright.core.errors import MissingDependencyError, UsageError
from boxwright.launchers.base import GUARD
from boxwright.optimize.process import Channel, ChildFailed, Limits, Nursery, open_nursery

QUICK = Limits(time_s=60)


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    with open_nursery() as nursery:
        yield nursery
    assert not nursery.folder.exists()


def _children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def _count(channel: Channel) -> dict[str, object]:
    channel.enter("counting")
    print("one two three")
    return {"threads": os.environ["OMP_NUM_THREADS"], "cores": sorted(os.sched_getaffinity(0)), "sum": 6}


def _segfault(channel: Channel) -> None:
    import ctypes

    channel.enter("forward")
    ctypes.string_at(0)


def _hang(channel: Channel) -> None:
    channel.enter("convert")
    while True:
        time.sleep(1)


def _start_another_and_wait(channel: Channel) -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    _echo(channel)


def _eat(channel: Channel) -> None:
    taken = []
    while True:
        taken.append(b"1" * (16 << 20))


def _refuse(channel: Channel) -> None:
    raise MissingDependencyError("Runtime 'x' needs y. Run: pip install y")


def _echo(channel: Channel) -> str:
    channel.answer(lambda question: None if question == {"end": True} else question)
    return "done"


def _leave(channel: Channel) -> None:
    os._exit(7)


def test_a_result_comes_back_and_what_is_printed_goes_to_the_log(nursery: Nursery, tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    limits = Limits(time_s=60, threads=3, cores=(core,))
    assert nursery.run(_count, limits=limits, log=tmp_path / "log") == {"threads": "3", "cores": [core], "sum": 6}
    assert (tmp_path / "log").read_text() == "one two three\n"


@pytest.mark.parametrize(
    ("job", "limits", "stage", "reason"),
    [
        (_segfault, QUICK, "forward", "SIGSEGV"),
        (_hang, Limits(time_s=60, stage_s={"convert": 0.2}), "convert", "more than 0.2 s"),
        (_eat, Limits(time_s=60, memory_bytes=200 << 20), "start", "more than the 200 MB allowed"),
        (_leave, QUICK, "start", "exit status 7"),
    ],
)
def test_a_failure_has_a_reason(
    nursery: Nursery, tmp_path: Path, job: object, limits: Limits, stage: str, reason: str
) -> None:
    before = _children()
    with pytest.raises(ChildFailed, match=reason) as caught:
        nursery.run(job, limits=limits, log=tmp_path / "log")  # type: ignore[arg-type]
    assert caught.value.stage == stage
    assert _children() == before
    last = (tmp_path / "log").read_text().splitlines()[-1]
    assert last.startswith(f"[{stage}] ")
    assert reason in last


def test_a_crash_leaves_its_stack_in_the_log(nursery: Nursery, tmp_path: Path) -> None:
    with pytest.raises(ChildFailed):
        nursery.run(_segfault, limits=QUICK, log=tmp_path / "log")
    assert "Segmentation fault" in (tmp_path / "log").read_text()


def test_what_a_job_raises_is_known_by_its_kind(nursery: Nursery, tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match="pip install y") as caught:
        nursery.run(_refuse, limits=QUICK, log=tmp_path / "log")
    assert isinstance(caught.value.cause, MissingDependencyError)
    assert "Traceback" in (tmp_path / "log").read_text()


def test_processes_that_a_child_has_started_end_with_it(nursery: Nursery, tmp_path: Path) -> None:
    child = nursery.start(_start_another_and_wait, limits=QUICK, log=tmp_path / "log")
    assert child.listen() == "ready"
    grandchildren = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    assert len(grandchildren) >= 2  # the other program, and the guard
    child.close()
    deadline = time.monotonic() + 10  # a killed process needs its turn on a cpu to be gone
    while alive := [one for one in grandchildren if _is_alive(one)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.01)


def _is_alive(pid: str) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # a dead one may wait for its new parent to notice


def test_questions_are_answered_one_by_one_also_after_a_pause(nursery: Nursery, tmp_path: Path) -> None:
    child = nursery.start(_echo, limits=QUICK, log=tmp_path / "log")
    assert child.listen() == "ready"
    for number in range(3):
        child.pause()
        assert Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        assert child.ask({"number": number}) == {"number": number}
    child.pause()
    child.send({"end": True})
    assert child.result() == "done"


def test_a_pause_stops_all_that_the_child_has_started_but_its_guard(nursery: Nursery, tmp_path: Path) -> None:
    child = nursery.start(_start_another_and_wait, limits=QUICK, log=tmp_path / "log")
    assert child.listen() == "ready"
    started = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    (other,) = [pid for pid in started if Path(f"/proc/{pid}/comm").read_text().strip() != GUARD]
    (guard,) = set(started) - {other}
    child.pause()
    assert [_state(pid) for pid in (child.pid, other, guard)] == ["T", "T", "S"]
    assert child.ask({"number": 1}) == {"number": 1}
    assert _state(other) != "T"


def _state(pid: int | str) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_child_that_dies_while_asked_is_a_failure(nursery: Nursery, tmp_path: Path) -> None:
    child = nursery.start(_echo, limits=QUICK, log=tmp_path / "log")
    child.listen()
    child.pause()
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ChildFailed, match="SIGKILL"):
        child.ask({"number": 1})


def test_a_job_that_cannot_be_sent_is_a_usage_error(nursery: Nursery, tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(UsageError, match="can't be sent to another process"):
        nursery.run(lambda channel: lock, limits=QUICK, log=tmp_path / "log")


def _interrupt_in_mid_work(log: Path, seen: list[Path]) -> None:
    with open_nursery() as nursery:
        seen.append(nursery.folder)
        child = nursery.start(_echo, limits=QUICK, log=log)
        child.listen()
        signal.raise_signal(signal.SIGINT)
        child.result()


def test_ctrl_c_ends_the_children_and_is_then_handed_on(tmp_path: Path) -> None:
    before, seen = _children(), list[Path]()
    with pytest.raises(KeyboardInterrupt):
        _interrupt_in_mid_work(tmp_path / "log", seen)
    assert not seen[0].exists()
    assert _children() == before
