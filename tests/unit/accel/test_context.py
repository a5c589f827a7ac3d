"""`init_context` before any engine is touched: what it asks for, and what it refuses."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from boxwright.accel.context import init_context, stop_context
from boxwright.core import catalogue
from boxwright.core.catalogue import Entry
from boxwright.core.errors import UsageError

ASKED: list[tuple[Any, ...]] = []


@contextmanager
def fake_spark(master: str, settings: dict[str, str]) -> Iterator[None]:
    ASKED.append((master, settings))
    yield
    ASKED.append(("closed",))


@contextmanager
def fake_ray(address: str | None, *, cores: int | None, memory: int | None) -> Iterator[None]:
    ASKED.append((address, cores, memory))
    yield
    ASKED.append(("closed",))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    engines = {name: Entry(target=f"{__name__}:fake_{name}") for name in ("ray", "spark")}
    monkeypatch.setitem(catalogue.CATALOGUE, "engine", engines)
    monkeypatch.setattr(catalogue, "import_module", lambda _: __import__("sys").modules[__name__])
    ASKED.clear()
    yield ASKED
    stop_context()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, ("local[*]", {})),
        ({"cores": 2, "memory": "2g"}, ("local[2]", {"spark.driver.memory": "2g"})),
        ({"cluster_mode": "standalone", "address": "host:7077"}, ("spark://host:7077", {})),
        (
            {"cluster_mode": "standalone", "address": "spark://host:7077", "cores": 4, "num_nodes": 3},
            ("spark://host:7077", {"spark.executor.cores": "4", "spark.cores.max": "12"}),
        ),
        (
            {"cluster_mode": "yarn-client", "cores": 4, "num_nodes": 3, "memory": "8g"},
            (
                "yarn",
                {
                    "spark.executor.memory": "8g",
                    "spark.executor.cores": "4",
                    "spark.executor.instances": "3",
                    "spark.submit.deployMode": "client",
                },
            ),
        ),
        (
            {"cluster_mode": "k8s-client", "address": "https://host:6443", "cores": 1, "settings": {"a": "b"}},
            (
                "k8s://https://host:6443",
                {"spark.executor.cores": "1", "spark.submit.deployMode": "client", "a": "b"},
            ),
        ),
        ({"cluster_mode": "ray"}, (None, None, None)),
        ({"cluster_mode": "ray", "cores": 2, "memory": "1g"}, (None, 2, 1 << 30)),
        ({"cluster_mode": "ray", "address": "host:6379", "num_nodes": 1}, ("host:6379", None, None)),
    ],
)
def test_each_mode_asks_its_engine_for_what_was_said(
    asked: list[tuple[Any, ...]], words: dict[str, Any], expected: tuple[Any, ...]
):
    with init_context(**words) as context:
        assert context.strategy == ("ray" if words.get("cluster_mode") == "ray" else "spark")
        assert asked == [expected]
    assert asked[-1] == ("closed",)


def test_a_context_is_stopped_once_and_only_one_is_open(asked: list[tuple[Any, ...]]):
    first = init_context()
    with pytest.raises(UsageError, match=r"A context is open already \('local'\)"):
        init_context("ray")
    stop_context()
    first.stop()
    stop_context()

    assert asked.count(("closed",)) == 1
    init_context("ray").stop()
    assert asked.count(("closed",)) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"cluster_mode": "standalon"}, "Did you mean 'standalone'"),
        ({"cores": 0}, "cores=0 is not possible"),
        ({"num_nodes": 0, "cluster_mode": "yarn-client"}, "num_nodes=0 is not possible"),
        ({"memory": "much"}, "memory='much' can't be read"),
        ({"memory": "4"}, "memory='4' can't be read.*with a unit"),
        ({"memory": 4, "cluster_mode": "ray"}, "memory=4 can't be read.*with a unit"),
        ({"address": "host:1"}, "address='host:1' does not apply to cluster_mode='local'"),
        ({"cluster_mode": "standalone"}, "needs an address, such as 'spark://host:port'"),
        ({"cluster_mode": "standalone", "address": "h:1", "num_nodes": 2}, "num_nodes=2 needs cores"),
        ({"cluster_mode": "k8s-client", "address": "h:1"}, "can't know how many cores"),
        ({"cluster_mode": "ray", "num_nodes": 2}, "num_nodes=2 does not apply to cluster_mode='ray'"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(asked: list[tuple[Any, ...]], words: dict[str, Any], sentence: str):
    with pytest.raises(UsageError, match=sentence.replace("(", r"\(")):
        init_context(**words)
    assert asked == []


UNSTOPPED = """
from contextlib import contextmanager
from boxwright.accel.context import init_context
from boxwright.core import catalogue

@contextmanager
def engine(master, settings):
    try:
        yield
    finally:
        import colorsys as _  # as engines do when they stop

catalogue.load = lambda kind, name: engine
init_context()
"""


def test_a_program_that_does_not_stop_its_context_ends_quietly() -> None:
    done = subprocess.run([sys.executable, "-c", UNSTOPPED], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("", "")
