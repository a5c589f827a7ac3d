"""Settings for every test."""

import pytest
from hypothesis import settings

pytest_plugins = ("support.fixtures", "support.clusters")

# Machines are shared and noisy: how long one example takes says nothing.
settings.register_profile("boxwright", deadline=None)
settings.load_profile("boxwright")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start a Ray or Spark cluster; `make test` leaves them to `make test-engines`."""
    for item in items:
        groups = {mark.args[0] for mark in item.iter_markers("xdist_group")}
        on_engine = {"ray", "spark"} & groups or "estimator_engines" in item.nodeid or "estimator_tables" in item.nodeid
        if on_engine or "example_estimator" in item.nodeid:
            item.add_marker(pytest.mark.engines)
