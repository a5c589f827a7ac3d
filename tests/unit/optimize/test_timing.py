"""Models take turns in children of their own. No times are asserted: only who ran how often, and what became of it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.planted import DoublingGraph

from boxwright.core.memory import Memory
from boxwright.core.signature import Port
from boxwright.optimize import timing
from boxwright.optimize.process import Limits, Nursery, open_nursery
from boxwright.optimize.timing import Latency, RaceRules, race
from boxwright.runtimes.base import Tuning

LIMITS = Limits(time_s=60)


@dataclass(frozen=True)
class FakeTarget:
    """A model that notes each run in a file that all of them share."""

    name: str
    notes: Path
    pause_s: float = 0.0
    crash: bool = False

    def __call__(self, tuning: Tuning) -> Any:
        return _NotingGraph(self)


class _NotingGraph(DoublingGraph):
    def __init__(self, target: FakeTarget) -> None:
        super().__init__(pause_s=target.pause_s, crash_if=Path(__file__) if target.crash else None)
        self._target = target

    def run(self, inputs: Any) -> Any:
        with self._target.notes.open("a") as file:
            file.write(self._target.name)
        return super().run(inputs)


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    with open_nursery() as nursery:
        yield nursery


def _race(nursery: Nursery, tmp_path: Path, rules: RaceRules, **options: Any) -> dict[str, Latency]:
    kinds: dict[str, dict[str, Any]] = options.pop("kinds", {})
    targets = {name: FakeTarget(name, tmp_path / "notes", **kinds.get(name, {})) for name in options.pop("names")}
    inputs = (np.ones((2, 3), np.float32),)
    return race(nursery, targets, inputs, rules=rules, limits=LIMITS, logs=tmp_path / "logs", **options)


def test_every_model_gets_its_runs_in_turns(nursery: Nursery, tmp_path: Path) -> None:
    found = _race(nursery, tmp_path, RaceRules(runs=12), names="ab", kinds={n: {"pause_s": 0.02} for n in "ab"})
    assert {name: latency.timing.runs for name, latency in found.items() if latency.timing} == {"a": 12, "b": 12}
    assert all(latency.peak_bytes > 1 << 20 for latency in found.values())
    turns = [len(list(run)) for _, run in groupby((tmp_path / "notes").read_text())]
    # Each begins in its turn, and a round begins with another one: the same model may have two turns on end.
    assert len(turns) >= 5
    assert max(turns[2:]) <= 2 * (5 + 1)


def test_a_model_that_crashes_does_not_disturb_the_others(nursery: Nursery, tmp_path: Path) -> None:
    found = _race(nursery, tmp_path, RaceRules(runs=3), names="abc", kinds={"b": {"crash": True}})
    assert "SIGSEGV" in found["b"].failure
    assert found["b"].timing is None
    assert found["a"].timing is not None
    assert found["c"].timing is not None
    assert "Segmentation fault" in (tmp_path / "logs" / "b.log").read_text()


def test_a_very_slow_model_is_stopped_early(nursery: Nursery, tmp_path: Path) -> None:
    rules = RaceRules(runs=40, baseline="a", early_stop=3.0)
    found = _race(nursery, tmp_path, rules, names="ab", kinds={"a": {"pause_s": 0.002}, "b": {"pause_s": 0.3}})
    assert found["b"].stopped
    assert not found["a"].stopped
    assert found["a"].timing is not None
    assert found["b"].timing is not None
    assert found["b"].timing.runs < found["a"].timing.runs == 40


def test_slow_models_get_fewer_runs(nursery: Nursery, tmp_path: Path) -> None:
    found = _race(nursery, tmp_path, RaceRules(runs=40, time_s=0.3), names="a", kinds={"a": {"pause_s": 0.1}})
    assert found["a"].timing is not None
    assert found["a"].timing.runs < 10


def test_memory_that_is_short_makes_waves_with_the_baseline_in_each(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "read_memory", lambda: Memory(total_bytes=1000, available_bytes=1000))
    done: list[int] = []
    rules = RaceRules(runs=4, baseline="a")
    found = _race(nursery, tmp_path, rules, names="abc", advance=lambda: done.append(1))
    assert list(found) == ["a", "b", "c"]
    assert {name: latency.timing.runs for name, latency in found.items() if latency.timing} == {"a": 8, "b": 4, "c": 4}
    assert len(done) == 4


class ManyInputs(DoublingGraph):
    """Takes inputs of the lengths 1, 2, 3 and so on."""

    def __init__(self, count: int) -> None:
        super().__init__()
        ports = tuple(Port(name=f"x{i}", dtype="float32", shape=(i + 1,)) for i in range(count))
        self.signature = replace(self.signature, inputs=ports)


def _open_many_inputs(tuning: Tuning) -> ManyInputs:
    return ManyInputs(12)


def test_a_model_gets_its_inputs_in_order(nursery: Nursery, tmp_path: Path) -> None:
    inputs = tuple(np.ones(i + 1, np.float32) for i in range(12))
    rules = RaceRules(runs=1)
    found = race(nursery, {"a": _open_many_inputs}, inputs, rules=rules, limits=LIMITS, logs=tmp_path / "logs")
    assert found["a"].failure == ""
