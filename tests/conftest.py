"""Settings for every test."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

pytest_plugins = ("support.fixtures", "support.clusters")

# Machines are shared and noisy: how long one example takes says nothing.
settings.register_profile("boxwright", deadline=None)
settings.load_profile("boxwright")


ENGINES = ("ray", "spark")


@pytest.hookimpl(tryfirst=True)  # before the groups are dealt out to test processes
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start a Ray or Spark cluster (`make test-engines`), and keep those of one engine together."""
    for item in items:
        engine = _find_engine(item)
        if engine is not None:
            assert "tests/contract" in item.nodeid or "tests/integration" in item.nodeid, f"{item.nodeid}: see Makefile"
            item.add_marker(pytest.mark.engines)
            if item.get_closest_marker("same_worker") is not None:
                item.add_marker(pytest.mark.more)
            if item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group(engine))
    items.sort(key=_engine_order)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail if tests that share a cluster would be split between processes."""
    if getattr(session.config.option, "loadgroup", False):
        for item in session.items:
            assert item.get_closest_marker("xdist_group") is None or "@" in item.nodeid, (
                f"{item.nodeid} is not kept in its group: this pytest and pytest-xdist do not fit together"
            )


def _engine_order(item: pytest.Item) -> int:
    """Put the tests of one cluster together, so that it is started once.

    Both engines need the run `by_hand`: Ray's tests make it at their beginning, so that Spark's, which need it at their
    end, don't wait for it.
    """
    engine, fixtures = _find_engine(item), getattr(item, "fixturenames", ())
    if engine is None:
        return 5
    in_order = 1 if f"{engine}_cluster" in fixtures else 3
    if engine == ENGINES[0]:
        return 0 if "by_hand" in fixtures else in_order
    return 4 if "by_hand" in fixtures else 4 - in_order


def _find_engine(item: pytest.Item) -> str | None:
    groups = [mark.args[0] for mark in item.iter_markers("xdist_group")]
    fixtures = getattr(item, "fixturenames", ())
    callspec = getattr(item, "callspec", None)
    values = [] if callspec is None or "integration" not in item.nodeid else list(callspec.params.values())
    for engine in ENGINES:
        if engine in groups or engine in values or any(name.startswith(f"{engine}_") for name in fixtures):
            return engine
    return None


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Restore our logger, which the command line configures for the whole process."""
    logger = logging.getLogger("boxwright")
    before = (list(logger.handlers), logger.level, logger.propagate, logger.disabled)
    yield
    logger.handlers[:], level, logger.propagate, logger.disabled = before
    logger.setLevel(level)
