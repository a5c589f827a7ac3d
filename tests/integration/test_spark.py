"""Launches on a Spark standalone master with two workers: results, and what is killed in between."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.clusters import further
from support.faults import Learning, exchange_places, find_orphans, learn_undisturbed
from support.processes import has_ended

from boxwright.core.errors import UsageError
from boxwright.core.world import World
from boxwright.launchers.base import WorkerFailed
from boxwright.launchers.placement import make_workers_anywhere
from boxwright.launchers.restart import Restart

pytest.importorskip("pyspark", reason="pyspark is not installed")
from boxwright.launchers.spark_ import SparkLauncher

pytestmark = pytest.mark.xdist_group("spark")

WORKERS = make_workers_anywhere(2)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return learn_undisturbed(tmp_path_factory.mktemp("undisturbed"))


def test_workers_of_two_executors_find_each_other(spark_cluster: str):
    # Both executors are on this one machine.
    assert SparkLauncher().run(exchange_places, WORKERS) == [(0, 0, 0, 2), (1, 0, 1, 2)]


def test_the_weights_are_those_of_subprocess(spark_cluster: str, tmp_path: Path, undisturbed: list[float]):
    assert SparkLauncher().run(Learning(tmp_path), WORKERS) == (pytest.approx(undisturbed, abs=1e-6), 0)


# What happens to a killed worker is the same code as on Ray, where two more die in `make test`.
@pytest.mark.parametrize("deaths", [1, *further(3)])
def test_killed_ranks_only_cost_time(spark_cluster: str, tmp_path: Path, undisturbed: list[float], deaths: int):
    launcher = SparkLauncher(restart=Restart(max_restarts=deaths))

    assert launcher.run(Learning.with_seed(tmp_path, "rank", 0, deaths), WORKERS) == (undisturbed, deaths)
    assert find_orphans(tmp_path) == []


@pytest.mark.parametrize("seed", [3, *further(4, 5)])
def test_three_killed_executors_only_cost_time(spark_cluster: str, tmp_path: Path, undisturbed: list[float], seed: int):
    launcher = SparkLauncher(restart=Restart(max_restarts=3))

    assert launcher.run(Learning.with_seed(tmp_path, "executor", seed, deaths=3), WORKERS) == (undisturbed, 3)
    assert find_orphans(tmp_path) == []


def test_a_users_exception_is_shown_once_with_its_rank_and_the_session_lives_on(spark_cluster: str):
    def job(world: World) -> int:
        if world.rank == 1:
            raise KeyError("nobody home")
        return world.rank

    with pytest.raises(WorkerFailed, match="Worker 1 failed: KeyError: 'nobody home'") as caught:
        SparkLauncher(restart=Restart(max_restarts=3)).run(job, WORKERS)

    assert str(caught.value).count("Traceback") == 1
    assert SparkLauncher().run(lambda world: world.world_size, WORKERS) == 2


def test_fewer_workers_are_enough_only_where_that_is_allowed(spark_cluster: str, caplog: pytest.LogCaptureFixture):
    def job(world: World) -> int:
        return world.world_size

    with pytest.raises(UsageError, match=r"2 of 3 workers with 1 cores.*min_workers"):
        SparkLauncher(start_timeout_s=1.0).run(job, make_workers_anywhere(3))

    assert SparkLauncher(min_workers=1, room_timeout_s=1.0).run(job, make_workers_anywhere(3)) == 2
    assert "room for 2 of 3 workers" in caplog.text


def test_what_the_active_session_can_not_change_is_refused(spark_cluster: str):
    with pytest.raises(UsageError, match=f"{spark_cluster!r} is active"):
        SparkLauncher(master="local[2]").run(lambda world: None, WORKERS)
    with pytest.raises(UsageError, match=r"spark\.task\.cpus=1"):
        SparkLauncher(cores_per_worker=2).run(lambda world: None, WORKERS)


# A program without a session: the launcher opens one and leaves nothing behind.
OWN_SESSION = """
import os, signal, sys
import psutil
from pyspark import SparkContext
from boxwright.launchers.placement import make_workers_anywhere
from boxwright.launchers.spark_ import SparkLauncher

before = signal.getsignal(signal.SIGINT)
assert SparkLauncher().run(lambda world: world.world_size, make_workers_anywhere(2)) == 2
assert SparkContext._active_spark_context is None
assert signal.getsignal(signal.SIGINT) is before
assert "PYSPARK_PYTHON" not in os.environ
left = [child.cmdline()[:3] for child in psutil.Process().children(recursive=True)]
assert not left, left
print("all is well")
"""


def test_a_session_of_its_own_is_closed_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    done = subprocess.run([sys.executable, "-c", OWN_SESSION], capture_output=True, text=True, timeout=180, check=False)

    assert done.stdout == "all is well\n", done.stderr


KILLED = """
import os, sys, threading
from boxwright.launchers.placement import make_workers_anywhere
from boxwright.launchers.spark_ import SparkLauncher

def job(world):
    print("running", os.getpid(), flush=True)
    threading.Event().wait(120)

SparkLauncher(master="local[2]").run(job, make_workers_anywhere(2))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, *further(signal.SIGINT)])
def test_a_driver_that_ends_takes_its_workers_along(number: int):
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        pids = [int(next(line for line in driver.stdout if "running" in line).split()[-1]) for _ in range(2)]
        driver.send_signal(number)

    assert driver.returncode == -number
    assert all(has_ended(pid, within_s=30) for pid in pids)
