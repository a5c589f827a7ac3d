"""Settings for every test."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

pytest_plugins = ("support.fixtures", "support.clusters")

# Machines are shared and noisy: how long one example takes says nothing.
settings.register_profile("boxwright", deadline=None)
settings.load_profile("boxwright")


ENGINES = ("test_estimator_engines", "test_estimator_tables", "test_example_estimator", "test_batch_inference")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start a Ray or Spark cluster (`make test-engines`)."""
    for item in items:
        groups = {mark.args[0] for mark in item.iter_markers("xdist_group")}
        if {"ray", "spark"} & groups or any(name in item.nodeid for name in ENGINES):
            item.add_marker(pytest.mark.engines)


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Put our logger back as it was: the command line sets it up for the whole process."""
    logger = logging.getLogger("boxwright")
    before = (list(logger.handlers), logger.level, logger.propagate, logger.disabled)
    yield
    logger.handlers[:], level, logger.propagate, logger.disabled = before
    logger.setLevel(level)
