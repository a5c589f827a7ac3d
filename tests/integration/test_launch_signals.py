"""A program that is interrupted or killed while its workers run leaves no process behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.processes import has_ended

# Each worker has a child of its own, as one with data workers has, and says when all are there.
PROGRAM = """
import os, signal, sys, threading
from boxwright.launchers.base import WorkerSpec
from boxwright.launchers.supervisor import Patience
from boxwright.launchers.local import SubprocessLauncher

def wait():
    threading.Event().wait(120)

def job(world):
    if "--stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
    child = os.fork()
    if child == 0:
        wait()
        os._exit(0)
    print("running", os.getpid(), child, flush=True)
    wait()

if "--handler" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: print("own handler"))
workers = [WorkerSpec(rank=r, local_rank=r, world_size=2, local_world_size=2) for r in range(2)]
try:
    SubprocessLauncher(patience=Patience(after_interrupt_s=600)).run(job, workers)
except KeyboardInterrupt:
    print("interrupted")
"""


class Program:
    """The program above, running: `pids` are the workers and their children."""

    def __init__(self, folder: Path, *words: str) -> None:
        script = folder / "program.py"
        script.write_text(PROGRAM)
        self.process = subprocess.Popen(
            [sys.executable, str(script), *words],
            env={**os.environ, "TMPDIR": str(folder / "temp")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = [self.read("running") for _ in range(2)]
        self.pids = [int(word) for line in lines for word in line.split()[-2:]]

    def read(self, word: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if word in line:
                return line
        raise AssertionError(f"The program ended without saying {word!r}.")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "temp").mkdir()
    started = []

    def start_program(*words: str) -> Program:
        started.append(Program(tmp_path, *words))
        return started[-1]

    yield start_program
    for program in started:
        for pid in program.pids:
            if not has_ended(pid):
                os.kill(pid, signal.SIGKILL)
        program.process.kill()
        program.process.wait()
        if program.process.stdout is not None:
            program.process.stdout.close()


def test_ctrl_c_stops_the_workers_and_is_raised_again(start: Start, tmp_path: Path):
    program = start()

    program.signal(signal.SIGINT)

    assert program.end() == (0, "interrupted\n")
    assert all(has_ended(pid, within_s=30) for pid in program.pids)
    assert list((tmp_path / "temp").iterdir()) == []


def test_a_second_ctrl_c_kills_at_once(start: Start, tmp_path: Path):
    program = start("--stubborn")

    program.signal(signal.SIGINT)
    for _ in range(2):
        program.read("asked")
    assert not any(has_ended(pid) for pid in program.pids)
    program.signal(signal.SIGINT)

    assert program.end() == (0, "interrupted\n")
    assert all(has_ended(pid, within_s=30) for pid in program.pids)
    assert list((tmp_path / "temp").iterdir()) == []


def test_sigterm_stops_the_workers_and_then_the_program(start: Start, tmp_path: Path):
    program = start()

    program.signal(signal.SIGTERM)

    assert program.end() == (-signal.SIGTERM, "")
    assert all(has_ended(pid, within_s=30) for pid in program.pids)
    assert list((tmp_path / "temp").iterdir()) == []


def test_the_programs_own_handler_gets_the_signal_when_the_workers_are_gone(start: Start):
    program = start("--handler")

    program.signal(signal.SIGTERM)

    assert program.end() == (128 + signal.SIGTERM, "own handler\n")
    assert all(has_ended(pid, within_s=30) for pid in program.pids)


def test_a_killed_program_takes_its_workers_and_their_children_along(start: Start):
    program = start("--stubborn")

    program.signal(signal.SIGKILL)

    assert program.process.wait(timeout=60) == -signal.SIGKILL
    assert all(has_ended(pid, within_s=30) for pid in program.pids)


def test_the_next_launch_removes_what_a_killed_program_left(start: Start, tmp_path: Path):
    first = start()
    first.signal(signal.SIGKILL)
    first.process.wait(timeout=60)
    left = set((tmp_path / "temp").iterdir())

    second = start()
    now = set((tmp_path / "temp").iterdir())
    second.signal(signal.SIGINT)
    second.end()

    assert len(left) == len(now) == 1
    assert left != now
