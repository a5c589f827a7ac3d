"""Real engines on this machine, started for a module's tests and stopped for sure."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    """A Ray of one machine with four CPUs, to which the tests' process is connected."""
    pytest.importorskip("ray", reason="ray is not installed")
    from boxwright.launchers.ray_ import open_ray

    with open_ray(cores=4):
        yield
