"""Launches on a Ray cluster of three nodes: places, results, and what is killed in between."""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.clusters import RayCluster, further
from support.faults import Learning, exchange_places, find_orphans, learn_undisturbed
from support.processes import has_ended

from boxwright.core.errors import UsageError
from boxwright.core.signals import sigterm_raises
from boxwright.core.world import World
from boxwright.launchers.base import WorkerFailed
from boxwright.launchers.placement import make_workers_anywhere
from boxwright.launchers.restart import Restart

pytest.importorskip("ray", reason="ray is not installed")
from boxwright.launchers.interrupts import keep_handler
from boxwright.launchers.ray_ import RayLauncher, open_ray

pytestmark = pytest.mark.xdist_group("ray")

WORKERS = make_workers_anywhere(2)
ON_TWO = RayLauncher(cores_per_worker=1)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return learn_undisturbed(tmp_path_factory.mktemp("undisturbed"))


def test_each_worker_is_on_its_node_and_finds_the_other(ray_cluster: RayCluster):
    # Where the machine's name resolves to loopback, gloo would by itself listen where nobody can call.
    assert ON_TWO.run(exchange_places, WORKERS) == [(0, 0, 0, 1), (1, 1, 0, 1)]


def test_the_rendezvous_is_on_the_first_workers_node(ray_cluster: RayCluster):
    def job(world: World) -> tuple[str, str, str | None]:
        with socket.socket() as sock:
            sock.bind((world.master_addr, world.master_port))
        return world.master_addr, os.environ["BOXWRIGHT_RENDEZVOUS"], os.environ.get("GLOO_SOCKET_IFNAME")

    address, rendezvous, interface = ON_TWO.run(job, WORKERS)

    assert rendezvous.startswith(f"{address}:")
    assert interface is not None


def test_the_weights_are_those_of_subprocess(ray_cluster: RayCluster, tmp_path: Path, undisturbed: list[float]):
    assert ON_TWO.run(Learning(tmp_path), WORKERS) == (pytest.approx(undisturbed, abs=1e-6), 0)


@pytest.mark.parametrize("deaths", [2, *further(3)])
def test_killed_ranks_only_cost_time(ray_cluster: RayCluster, tmp_path: Path, undisturbed: list[float], deaths: int):
    launcher = replace(ON_TWO, restart=Restart(max_restarts=deaths))

    assert launcher.run(Learning.with_seed(tmp_path, "rank", 0, deaths), WORKERS) == (undisturbed, deaths)
    assert find_orphans(tmp_path) == []


@pytest.mark.parametrize("seed", [3, *further(4, 5)])
def test_three_lost_nodes_only_cost_time(ray_cluster: RayCluster, tmp_path: Path, undisturbed: list[float], seed: int):
    launcher = replace(ON_TWO, restart=Restart(max_restarts=3))

    ray_cluster.complete(spare=2)
    assert launcher.run(Learning.with_seed(tmp_path, "node", seed, deaths=3), WORKERS) == (undisturbed, 3)
    assert find_orphans(tmp_path) == []


def test_without_restarts_a_lost_node_is_an_error(ray_cluster: RayCluster, tmp_path: Path):
    with pytest.raises(WorkerFailed, match=r"Worker \d was (lost with its agent on|killed by)") as caught:
        ON_TWO.run(Learning(tmp_path, "node", ((2, 0),)), WORKERS)

    assert caught.value.kind == "death"


def test_fewer_workers_are_enough_only_where_that_is_allowed(ray_cluster: RayCluster, caplog: pytest.LogCaptureFixture):
    def job(world: World) -> int:
        return world.world_size

    strict = replace(ON_TWO, start_timeout_s=1.0)
    with pytest.raises(UsageError, match=r"4 workers with 1 CPUs.*min_workers"):
        strict.run(job, make_workers_anywhere(4))

    relaxed = replace(ON_TWO, min_workers=2, room_timeout_s=1.0)
    assert relaxed.run(job, make_workers_anywhere(4)) == 3
    assert "room for 3 of 4 workers" in caplog.text


def test_another_clusters_address_is_refused(ray_cluster: RayCluster):
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:1.*connected"):
        RayLauncher(address="127.0.0.1:1").run(lambda world: None, WORKERS)
    with pytest.raises(UsageError, match="ray job submit"):
        RayLauncher(address="ray://127.0.0.1:1").run(lambda world: None, WORKERS)


# A program whose streams are its own logger's, without `fileno`, and which starts its own Ray.
OWN_RAY = """
import signal, sys
import psutil, ray
from boxwright.launchers.placement import make_workers_anywhere
from boxwright.launchers.ray_ import RayLauncher, open_ray

class Stream:
    def __init__(self): self.text = ""
    def write(self, text): self.text += text

def job(world):
    print("hello")
    return world.rank, world.world_size

real = sys.stdout
sys.stdout, sys.stderr = Stream(), Stream()
before = signal.getsignal(signal.SIGTERM)
result = RayLauncher().run(job, make_workers_anywhere(2))
assert result == (0, 2), result
assert sorted(sys.stdout.text.splitlines()) == ["[rank 0] hello", "[rank 1] hello"], sys.stdout.text
assert not ray.is_initialized()
assert signal.getsignal(signal.SIGTERM) is before
left = [child.cmdline()[:3] for child in psutil.Process().children(recursive=True)]
assert not left, left
real.write("all is well")
"""


def test_a_ray_of_its_own_is_stopped_again_and_streams_without_fileno_work():
    done = subprocess.run([sys.executable, "-c", OWN_RAY], capture_output=True, text=True, timeout=120, check=False)

    assert done.stdout == "all is well", done.stderr


KILLED = """
import os, sys, threading
from boxwright.launchers.placement import make_workers_anywhere
from boxwright.launchers.ray_ import RayLauncher, open_ray

def job(world):
    print("running", os.getpid(), flush=True)
    threading.Event().wait(120)

RayLauncher(address=sys.argv[1]).run(job, make_workers_anywhere(2))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_driver_that_ends_takes_its_workers_along(ray_cluster: RayCluster, number: int):
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, ray_cluster.address], stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        pids = [int(next(line for line in driver.stdout if "running" in line).split()[-1]) for _ in range(2)]
        driver.send_signal(number)

    assert driver.returncode == -number
    assert all(has_ended(pid, within_s=30) for pid in pids)


@pytest.mark.parametrize("code", [1, signal.SIGTERM])  # those of Ray's two handlers
def test_a_sigterm_while_ray_connects_is_for_the_programs_own_handler(monkeypatch: pytest.MonkeyPatch, code: int):
    def init(**_: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(code))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with keep_handler(signal.SIGTERM):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # an earlier test's Ray may have left its own
        with sigterm_raises(), pytest.raises(SystemExit) as caught, open_ray("local"):
            pass
    assert caught.value.code == 128 + signal.SIGTERM
