"""What happens after a worker's job has returned or failed, and which worker is blamed."""

import atexit
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from boxwright.core.world import World
from boxwright.launchers.base import WorkerFailed, WorkerSpec
from boxwright.launchers.local import SubprocessLauncher

ALONE = [WorkerSpec()]
TWO = [WorkerSpec(rank=rank, local_rank=rank, world_size=2, local_world_size=2) for rank in range(2)]
LOST = RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer")


def test_a_thread_that_still_writes_is_waited_for(tmp_path: Path):
    def job(world: World) -> None:
        def save() -> None:
            threading.Event().wait(0.2)
            (tmp_path / "checkpoint").touch()

        threading.Thread(target=save).start()

    SubprocessLauncher().run(job, ALONE)

    assert (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("fails", [False, True])
def test_functions_for_the_end_of_the_program_are_called(fails: bool, tmp_path: Path):
    def job(world: World) -> None:
        atexit.register((tmp_path / "closed").touch)
        if fails:
            raise ValueError

    if fails:
        with pytest.raises(WorkerFailed):
            SubprocessLauncher().run(job, ALONE)
    else:
        SubprocessLauncher().run(job, ALONE)

    assert (tmp_path / "closed").exists()


def test_a_library_that_crashes_after_the_result_is_mentioned_and_changes_nothing(caplog: pytest.LogCaptureFixture):
    def job(world: World) -> str:
        atexit.register(os.abort)
        return "done"

    with redirect_stderr(io.StringIO()):
        assert SubprocessLauncher().run(job, ALONE) == "done"

    (message,) = caplog.messages
    assert re.search("Worker 0 did its job.* -6", message)


def test_a_failed_worker_cannot_hang_at_its_end(tmp_path: Path):
    def job(world: World) -> None:
        atexit.register((tmp_path / "hung").touch)
        atexit.register(threading.Event().wait, 60)
        threading.Thread(target=threading.Event().wait, args=(60,)).start()
        raise ValueError("at once")

    with pytest.raises(WorkerFailed, match="ValueError: at once"):
        SubprocessLauncher().run(job, ALONE)

    assert not (tmp_path / "hung").exists()


def test_the_last_output_comes_out_though_stdout_was_replaced():
    def job(world: World) -> None:
        print("kept back", end="")
        sys.stdout = io.StringIO()

    out = io.StringIO()
    with redirect_stdout(out):
        SubprocessLauncher().run(job, ALONE)

    assert out.getvalue() == "kept back"


def test_torchruns_variables_do_not_reach_our_workers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")

    names = SubprocessLauncher().run(lambda world: sorted(os.environ), ALONE)

    assert not [name for name in names if name.startswith("TORCHELASTIC_")]


def wait_until(is_so: Callable[[], bool]) -> None:
    for _ in range(6000):
        if is_so():
            return
        threading.Event().wait(0.01)
    raise TimeoutError


def wait_until_gone(file: Path) -> None:
    """Wait until the process whose id is in a file has ended, and its launcher has noticed."""
    wait_until(file.exists)
    wait_until(lambda: not Path("/proc", file.read_text()).exists())


def write_pid(file: Path) -> None:
    file.with_suffix(".new").write_text(str(os.getpid()))
    file.with_suffix(".new").rename(file)


def test_a_worker_that_lost_the_others_is_not_blamed_for_a_death_that_is_noticed_later(tmp_path: Path):
    def job(world: World) -> None:
        if world.rank == 0:
            wait_until((tmp_path / "ready").exists)
            write_pid(tmp_path / "first")
            raise LOST
        (tmp_path / "ready").touch()
        wait_until_gone(tmp_path / "first")
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerFailed, match="Worker 1 was killed by signal 9"):
        SubprocessLauncher().run(job, TWO)


def test_a_worker_that_lost_the_others_is_not_blamed_for_an_error_of_one_that_is_still_ending(tmp_path: Path):
    def job(world: World) -> None:
        if world.rank == 0:
            wait_until((tmp_path / "reported").exists)
            write_pid(tmp_path / "first")
            raise LOST
        # Called in reverse order, when the error has been written down.
        atexit.register(wait_until_gone, tmp_path / "first")
        atexit.register((tmp_path / "reported").touch)
        raise ValueError("the reason")

    with pytest.raises(WorkerFailed, match="Worker 1 failed: ValueError: the reason"):
        SubprocessLauncher().run(job, TWO)


def test_a_worker_that_lost_the_others_is_named_if_no_other_failed():
    def job(world: World) -> None:
        if world.rank == 0:
            raise LOST

    with pytest.raises(WorkerFailed, match="Worker 0 lost the others: RuntimeError") as caught:
        SubprocessLauncher().run(job, TWO)
    assert caught.value.kind == "communication"
