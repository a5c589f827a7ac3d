"""Real engines on this machine, shared by the tests that need the same one, and always stopped at the end."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

_STORE_BYTES = 80 << 20


def further(*values: Any) -> list[Any]:
    """Return values, or tuples of them, to try a slow test with in `make test-engines` alone."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.more) for value in values
    ]


class Running:
    """The running cluster of each engine: the next test reuses it, or it is stopped to start another one."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[str, Any, ExitStack]] = {}

    def get(self, engine: str, kind: str, start: Callable[[], AbstractContextManager[Any]]) -> Any:
        """Return the engine's cluster of this kind, started if it is not the one that runs."""
        if engine not in self._running or self._running[engine][0] != kind:
            self.stop(engine)
            stack = ExitStack()
            self._running[engine] = kind, stack.enter_context(start()), stack
        return self._running[engine][1]

    def stop(self, engine: str) -> None:
        if engine in self._running:
            self._running.pop(engine)[2].close()

    def stop_all(self) -> None:
        for engine in list(self._running):
            self.stop(engine)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The clusters of this test process; their workers have their own cache folder."""
    clusters = Running()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOXWRIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield clusters
        clusters.stop_all()


@pytest.fixture
def ray_here(running: Running) -> None:
    """A Ray of one machine with four CPUs, to which the tests' process is connected."""
    pytest.importorskip("ray", reason="ray is not installed")
    from boxwright.launchers.ray_ import open_ray

    running.get("ray", "here", lambda: open_ray(cores=4))


@pytest.fixture
def spark_here(running: Running) -> None:
    """A Spark session with two local cores."""
    need_spark()
    from boxwright.launchers.spark_session import open_spark

    running.get("spark", "here", lambda: open_spark("local[2]"))


class RayCluster:
    """Three Ray nodes on this machine with one CPU each, so that two workers are never on the same one."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1,
                "object_store_memory": _STORE_BYTES,
                "include_dashboard": False,
                "_system_config": {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000},
            },
        )
        self._others: list[Any] = []
        self.address: str = self._cluster.address

    def complete(self, spare: int = 0) -> None:
        """Make sure that all nodes run, and some spare ones, after a test has killed any except the head."""
        alive = [node for node in self._others if self._is_alive(node)][: 2 + spare]
        for node in [node for node in self._others if node not in alive]:
            self._cluster.remove_node(node, allow_graceful=False)
            self._others.remove(node)
        while len(self._others) < 2 + spare:
            self._others.append(self._cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES))

    def close(self) -> None:
        self._cluster.shutdown()

    def _is_alive(self, node: Any) -> bool:
        return not any(kind == "raylet" for kind, _ in node.dead_processes())


@contextmanager
def start_ray() -> Iterator[RayCluster]:
    """Three Ray nodes, to which the tests' process is connected."""
    from boxwright.launchers.ray_ import open_ray

    cluster = RayCluster()
    try:
        cluster.complete()
        with open_ray(cluster.address):
            yield cluster
    finally:
        cluster.close()


@pytest.fixture
def ray_cluster(running: Running) -> RayCluster:
    """The nodes, all alive at the start of each test."""
    pytest.importorskip("ray", reason="ray is not installed")
    nodes: RayCluster = running.get("ray", "cluster", start_ray)
    nodes.complete()
    return nodes


def need_spark() -> None:
    """Skip a test where Spark can't run."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed")


def _wait_for(port: int, timeout_s: float = 60.0) -> None:
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < end_s, "Spark's master does not listen"
            time.sleep(0.1)
        else:
            return


@contextmanager
def start_spark(folder: Path) -> Iterator[str]:
    """Give the URL of a standalone master with two workers of one core each, on the loopback interface."""
    import pyspark

    home = Path(pyspark.__file__).parent
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    place = ["--host", "127.0.0.1", "--webui-port", "0"]
    commands = [["org.apache.spark.deploy.master.Master", *place, "--port", str(port)]]
    commands += [
        ["org.apache.spark.deploy.worker.Worker", *place, "-c", "1", "-m", "1g", "-d", str(folder / str(n)), address]
        for n in range(2)
    ]
    env = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    started: list[subprocess.Popen[bytes]] = []
    with (folder / "log").open("wb") as log:
        try:
            for command in commands:
                process = subprocess.Popen(
                    [str(home / "bin" / "spark-class"), *command],
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                started.append(process)
                if process is started[0]:
                    _wait_for(port)  # a worker that finds no master tries again after up to a quarter of a minute
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
                yield address
        finally:
            for process in reversed(started):
                os.killpg(process.pid, signal.SIGTERM)  # a worker ends its executors
            for process in reversed(started):
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


@pytest.fixture
def spark_cluster(running: Running, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of such a master, with a session of this process on it."""
    need_spark()
    from boxwright.launchers.spark_session import open_spark

    @contextmanager
    def start() -> Iterator[str]:
        folder = tmp_path_factory.mktemp("spark")
        with start_spark(folder) as master, open_spark(master, {"spark.executor.memory": "512m"}):
            yield master

    master: str = running.get("spark", "cluster", start)
    return master
