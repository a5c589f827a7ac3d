"""The contract of every launcher."""

import io
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from support.processes import has_ended

from boxwright.core.catalogue import load, names
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import DataError, UsageError, WorkerError
from boxwright.core.world import World, current
from boxwright.launchers.base import Launcher, WorkerFailed, WorkerSpec
from boxwright.launchers.restart import Restart

# Launchers on an engine use one that runs already; a test process of its own has it.
ENGINES = {"ray": "ray_here", "spark": "spark_here"}


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.xdist_group(name)) if name in ENGINES else name
        for name in names("launcher")
    ]
)
def make(request: pytest.FixtureRequest) -> Callable[..., Launcher]:
    if request.param in ENGINES:
        request.getfixturevalue(ENGINES[request.param])
    found: Callable[..., Launcher] = load("launcher", request.param)
    return found


@pytest.fixture
def launcher(make: Callable[..., Launcher]) -> Launcher:
    return make()


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of the test's own, so that what is left in it is seen."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def workers(count: int, **more: Any) -> list[WorkerSpec]:
    """Workers that share all cores."""
    return [
        WorkerSpec(rank=rank, local_rank=rank, world_size=count, local_world_size=count, **more)
        for rank in range(count)
    ]


def wait_to_be_stopped() -> None:
    threading.Event().wait(60)


class Odd(Exception):
    """An exception that can't be made again from its arguments."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def test_the_first_workers_result_comes_back(launcher: Launcher):
    assert launcher.run(lambda world: ("from", world.rank), workers(2)) == ("from", 0)


def test_each_worker_knows_its_place(launcher: Launcher, tmp_path: Path):
    def job(world: World) -> None:
        (tmp_path / str(world.rank)).write_bytes(pickle.dumps((world, current())))

    launcher.run(job, workers(2))

    for rank in range(2):
        world, read_again = pickle.loads((tmp_path / str(rank)).read_bytes())
        assert world == read_again
        assert (world.rank, world.local_rank, world.world_size, world.local_world_size) == (rank, rank, 2, 2)


def test_a_worker_is_a_fresh_interpreter_without_libraries_that_compute(launcher: Launcher):
    def job(world: World) -> tuple[int, set[str]]:
        return os.getpid(), {"torch", "numpy", "cv2"} & set(sys.modules)

    pid, loaded = launcher.run(job, workers(1))

    assert pid != os.getpid()
    assert loaded == set()


def test_cores_threads_and_variables_are_set_before_the_job_is_unpacked(launcher: Launcher):
    core = read_cpu().allowed[-1]
    worker = WorkerSpec(cores=(core,), threads=3, env=(("MY_OWN", "yes"),))

    seen = launcher.run(SeesItsPlaceWhileUnpacked(), [worker])

    assert seen == {"cores": {core}, "threads": "3", "own": "yes", "sid": True}
    assert os.sched_getaffinity(0) == set(read_cpu().allowed)


class SeesItsPlaceWhileUnpacked:
    def __call__(self, world: World) -> dict[str, Any]:
        return self.seen

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.seen = {
            "cores": os.sched_getaffinity(0),
            "threads": os.environ["OMP_NUM_THREADS"],
            "own": os.environ["MY_OWN"],
            "sid": os.getsid(0) == os.getpid(),
        }

    def __getstate__(self) -> dict[str, Any]:
        return {"something": 1}


def test_what_workers_print_comes_out_with_their_rank(launcher: Launcher):
    def job(world: World) -> None:
        print(f"hello from {world.rank}")
        print("no end", end="")
        print("trouble ×", file=sys.stderr)

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        launcher.run(job, workers(2))

    lines = [f"[rank {rank}] {text}" for rank in range(2) for text in ("hello from " + str(rank), "no end")]
    assert sorted(out.getvalue().splitlines()) == lines
    assert sorted(err.getvalue().splitlines()) == ["[rank 0] trouble ×", "[rank 1] trouble ×"]


@pytest.mark.same_worker
def test_a_single_worker_prints_as_if_it_were_this_process(launcher: Launcher):
    def job(world: World) -> None:
        print("50 %", end="\r")
        print("done", end="")

    out = io.StringIO()
    with redirect_stdout(out):
        launcher.run(job, workers(1))

    assert out.getvalue() == "50 %\rdone"


@pytest.mark.same_worker
def test_much_output_neither_blocks_nor_gets_lost(launcher: Launcher):
    def job(world: World) -> None:
        sys.stdout.write(("x" * 99 + "\n") * 20_000)

    out = io.StringIO()
    with redirect_stdout(out):
        launcher.run(job, workers(2))

    assert out.getvalue().count("x" * 99 + "\n") == 40_000


def test_first_failure_stops_the_other_workers_and_shows_its_traceback(launcher: Launcher, tmp_path: Path):
    def job(world: World) -> None:
        (tmp_path / str(world.rank)).write_text(str(os.getpid()))
        if world.rank == 1:
            raise KeyError("nobody home")
        wait_to_be_stopped()

    with pytest.raises(WorkerFailed, match="Worker 1 failed: KeyError: 'nobody home'") as caught:
        launcher.run(job, workers(2))

    error = caught.value
    assert (error.rank, error.kind, error.exit_code, error.status) == (1, "exception", 1, 1)
    assert "in job" in str(error)
    assert isinstance(error.__cause__, KeyError)
    assert isinstance(error, WorkerError)
    for rank in range(2):
        file = tmp_path / str(rank)
        assert not file.exists() or has_ended(int(file.read_text()), within_s=30)


@pytest.mark.same_worker
def test_an_exception_that_can_not_be_pickled_is_still_described(launcher: Launcher):
    def job(world: World) -> None:
        raise Odd(1, 2)

    with pytest.raises(WorkerFailed, match="Odd: 1 and 2") as caught:
        launcher.run(job, workers(1))

    assert caught.value.__cause__ is None


@pytest.mark.same_worker
def test_our_own_errors_keep_their_sentence_and_exit_code(launcher: Launcher):
    def job(world: World) -> None:
        raise DataError("No image in 'there'. Choose another folder.")

    with pytest.raises(WorkerFailed) as caught:
        launcher.run(job, workers(1))

    error = caught.value
    assert str(error) == "Worker 0 failed: DataError: No image in 'there'. Choose another folder."
    assert error.exit_code == 3
    assert isinstance(error.__cause__, DataError)
    assert "Traceback" in error.__notes__[0]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "SIGKILL.*memory"),
        pytest.param(signal.SIGSEGV, "SIGSEGV.*native library", marks=pytest.mark.same_worker),
    ],
)
def test_a_signal_that_kills_a_worker_is_named(launcher: Launcher, number: int, words: str):
    def job(world: World) -> None:
        if world.rank == 1:
            os.kill(os.getpid(), number)
        wait_to_be_stopped()

    with (
        redirect_stderr(io.StringIO()),
        pytest.raises(WorkerFailed, match=f"Worker 1 .*{words}") as e,
    ):
        launcher.run(job, workers(2))

    assert (e.value.rank, e.value.kind, e.value.status) == (1, "death", -number)


@pytest.mark.same_worker
def test_a_process_that_just_ends_is_noticed(launcher: Launcher):
    with pytest.raises(WorkerFailed, match=r"Worker 0 .* exit status 3") as caught:
        launcher.run(lambda world: os._exit(3), workers(1))

    assert (caught.value.kind, caught.value.status) == ("death", 3)


@pytest.mark.same_worker
def test_sys_exit_is_an_end_without_a_result_or_a_failure_by_its_code(launcher: Launcher):
    assert launcher.run(lambda world: sys.exit(0), workers(1)) is None
    with pytest.raises(WorkerFailed, match="SystemExit: 3") as caught:
        launcher.run(lambda world: sys.exit(3), workers(1))
    assert caught.value.kind == "exception"


def test_what_cannot_be_sent_is_refused(launcher: Launcher):
    lock = threading.Lock()

    with pytest.raises(UsageError, match=r"The job can't be sent .*lock"):
        launcher.run(lambda world: lock.locked(), workers(1))
    with pytest.raises(WorkerFailed, match=r"result can't be sent .*lock") as caught:
        launcher.run(lambda world: threading.Lock(), workers(1))
    assert caught.value.exit_code == 2


def test_workers_that_do_not_fit_together_are_refused(launcher: Launcher):
    with pytest.raises(UsageError, match="ranks 0 to 1"):
        launcher.run(lambda world: None, [WorkerSpec(), WorkerSpec()])


def test_workers_are_restarted_on_another_port_after_one_died(make: Callable[..., Launcher], tmp_path: Path):
    def job(world: World) -> int:
        with (tmp_path / "ports").open("a") as file:
            file.write(f"{world.master_port}\n")
        if os.environ["BOXWRIGHT_ATTEMPT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return int(os.environ["BOXWRIGHT_ATTEMPT"])

    assert make(restart=Restart(max_restarts=1)).run(job, workers(1)) == 1
    assert len(set((tmp_path / "ports").read_text().split())) == 2


def test_a_job_that_raised_is_never_restarted(make: Callable[..., Launcher], tmp_path: Path):
    def job(world: World) -> None:
        with (tmp_path / "starts").open("a") as file:
            file.write("x")
        raise ZeroDivisionError

    with pytest.raises(WorkerFailed):
        make(restart=Restart(max_restarts=3)).run(job, workers(1))

    assert (tmp_path / "starts").read_text() == "x"


def test_processes_that_a_worker_leaves_behind_are_ended(launcher: Launcher):
    def job(world: World) -> int:
        child = os.fork()
        if child == 0:
            wait_to_be_stopped()
        return child

    child = launcher.run(job, workers(1))

    assert has_ended(child, within_s=30)


def test_no_file_is_left(launcher: Launcher, temp: Path):
    launcher.run(lambda world: 1, workers(1))
    with pytest.raises(WorkerFailed):
        launcher.run(lambda world: 1 / 0, workers(2))

    assert list(temp.iterdir()) == []


def test_a_worker_may_launch_workers_itself(make: Callable[..., Launcher], request: pytest.FixtureRequest):
    # An engine's worker starts its own on its machine: asking the engine for more room could wait forever.
    own = load("launcher", "subprocess") if request.node.callspec.params["make"] in ENGINES else make

    def job(world: World) -> str:
        return own().run(lambda inner: f"{world.rank} of {world.world_size}, then {inner.world_size}", workers(1))

    assert make().run(job, workers(2)) == "0 of 2, then 1"


@pytest.mark.same_worker
def test_a_launch_from_a_thread_works(launcher: Launcher):
    results = []
    thread = threading.Thread(target=lambda: results.append(launcher.run(lambda world: 7, workers(1))))

    thread.start()
    thread.join()

    assert results == [7]
