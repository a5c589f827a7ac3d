"""Real engines on this machine, started for a module's tests and stopped for sure."""

import shutil
from collections.abc import Iterator

import pytest


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
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed")
    from boxwright.launchers.spark_ import open_spark

    with open_spark("local[2]"):
        yield
