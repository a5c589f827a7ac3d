"""Real engines on this machine, started for a module's tests and stopped for sure."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_STORE_BYTES = 80 << 20


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    """A Ray of one machine with four CPUs, to which the tests' process is connected."""
    pytest.importorskip("ray", reason="ray is not installed")
    from boxwright.launchers.ray_ import open_ray

    with open_ray(cores=4):
        yield


@pytest.fixture(scope="module")
def spark_here() -> Iterator[None]:
    """A Spark session with two local cores."""
    need_spark()
    from boxwright.launchers.spark_ import open_spark

    with open_spark("local[2]"):
        yield


class RayCluster:
    """Two Ray nodes on this machine: a head with two CPUs and another with one."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 2,
                "object_store_memory": _STORE_BYTES,
                "include_dashboard": False,
                "_system_config": {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000},
            },
        )
        self._second: Any = None
        self.address: str = self._cluster.address

    def complete(self) -> None:
        """Have both nodes there, whatever a test has done to the second."""
        if self._second is not None and self._is_alive(self._second):
            return
        if self._second is not None:
            self._cluster.remove_node(self._second, allow_graceful=False)
        self._second = self._cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES)

    def close(self) -> None:
        self._cluster.shutdown()

    def _is_alive(self, node: Any) -> bool:
        return not any(kind == "raylet" for kind, _ in node.dead_processes())


@pytest.fixture(scope="module")
def ray_nodes() -> Iterator[RayCluster]:
    """Two Ray nodes, to which the tests' process is connected."""
    pytest.importorskip("ray", reason="ray is not installed")
    from boxwright.launchers.ray_ import open_ray

    cluster = RayCluster()
    try:
        cluster.complete()
        with open_ray(cluster.address):
            yield cluster
    finally:
        cluster.close()


@pytest.fixture
def ray_cluster(ray_nodes: RayCluster) -> RayCluster:
    """Both nodes, alive at the start of each test."""
    ray_nodes.complete()
    return ray_nodes


def need_spark() -> None:
    """Skip a test where Spark can't run."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed")


@pytest.fixture(scope="module")
def spark_master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a standalone master with two workers of one core each, on the loopback interface."""
    need_spark()
    import pyspark

    home, folder = Path(pyspark.__file__).parent, tmp_path_factory.mktemp("spark")
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


@pytest.fixture(scope="module")
def spark_cluster(spark_master: str, monkeypatch_module: pytest.MonkeyPatch) -> Iterator[str]:
    """The same master, with a session of this process on it."""
    from boxwright.launchers.spark_ import open_spark

    monkeypatch_module.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    with open_spark(spark_master, {"spark.executor.memory": "512m"}):
        yield spark_master


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    """Changes that last as long as a module's tests."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch
