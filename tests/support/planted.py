"""Runtimes with planted faults, and a model of three lines to try them on. No torch here: children start quickly.

A child is a fresh interpreter that knows nothing of a test's changes. So the table of runtimes is changed when
something of this module is unpickled there: `DoublingCase` does that.
"""

import ctypes
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.core.catalogue import CATALOGUE, Entry
from boxwright.core.signature import Array, Port, Signature
from boxwright.optimize.accuracy import Score
from boxwright.runtimes.base import Choice, Tuning, one_by_one

SIGNATURE = Signature(
    inputs=(Port(name="x", dtype="float32", shape=(None, 3)),),
    outputs=(Port(name="y", dtype="float32", shape=(None, 3)),),
    call={"tuple": [{"tuple": [{"leaf": 0}]}, {"dict": {}}]},
    result={"leaf": 0},
)
FAULTS = ("good", "crash", "illegal", "crash_later", "hang", "wrong", "hungry", "clumsy", "slow")


def plant() -> None:
    """Put the faulty runtimes into this process's table."""
    for name in FAULTS:
        CATALOGUE["runtime"][name] = Entry(target=f"support.planted:{name.title().replace('_', '')}Runtime")


class DoublingGraph:
    """Gives twice its input, times a factor; crashes if a given file exists."""

    def __init__(self, factor: float = 1.0, pause_s: float = 0.0, crash_if: Path | None = None) -> None:
        self.signature = SIGNATURE
        self._factor, self._pause_s, self._crash_if = factor, pause_s, crash_if

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        if self._crash_if is not None and self._crash_if.is_file():
            ctypes.string_at(0)
        time.sleep(self._pause_s)
        return (inputs[0] * np.float32(2 * self._factor),)

    def run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        return one_by_one(self, requests)

    def close(self) -> None:
        pass


class DoublingSource:
    """Stands where a `Source` stands."""

    signature = SIGNATURE
    example = (np.arange(6, dtype=np.float32).reshape(2, 3),)
    variants, notes = (), ()

    def relaxed(self) -> Iterator["DoublingSource"]:
        yield self

    def fitting(self, samples: Sequence[tuple[Array, ...]]) -> Sequence[tuple[Array, ...]]:
        return samples

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return DoublingGraph().run(inputs)


class LengthScorer:
    """Scores a graph by the mean of what it makes of ones; one result a sample."""

    name, direction = "length", "max"

    def score(self, graph: Any) -> Score:
        samples = graph.run([np.ones((4, 3), np.float32)])[0].mean(axis=1)
        return Score(value=float(samples.mean()), count=len(samples), arrays={"samples": samples})

    def resample(self, score: Score, weights: Any) -> Any:
        return weights @ score.arrays["samples"] / weights.sum(axis=1)

    def fingerprint(self) -> str:
        return "length"


class BrokenScorer(LengthScorer):
    """Raises, whatever it is given."""

    def score(self, graph: Any) -> Score:
        raise RuntimeError("no such label")


class DoublingCase:
    """A case without torch."""

    spec = None

    def __init__(self, scorer: Any = None) -> None:
        self.scorer = scorer

    def __setstate__(self, state: dict[str, Any]) -> None:
        plant()
        self.__dict__.update(state)

    def source(self) -> DoublingSource:
        return DoublingSource()

    def probes(self) -> list[tuple[Array, ...]]:
        return [(np.arange(6, dtype=np.float32).reshape(2, 3),), (np.array([[5, -1, 2]], np.float32),)]

    def calibration(self) -> list[tuple[Array, ...]]:
        return self.probes()

    def timing_inputs(self) -> tuple[Array, ...]:
        return self.probes()[0]

    def fingerprint(self) -> str:
        return "doubling"


class GoodRuntime:
    """Without a fault."""

    def convert(self, source: Any, choice: Choice, folder: Path, calibration: Any) -> dict[str, Any]:
        (folder / "weights").write_text("2", encoding="ascii")
        return {"how": "well"}

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> Any:
        return DoublingGraph()


class CrashRuntime(GoodRuntime):
    """Reads where there is nothing while it converts, with half a file written."""

    def convert(self, source: Any, choice: Choice, folder: Path, calibration: Any) -> dict[str, Any]:
        (folder / "half").write_text("2", encoding="ascii")
        return {"how": ctypes.string_at(0)}


class IllegalRuntime(GoodRuntime):
    """Uses an instruction that the cpu does not have."""

    def convert(self, source: Any, choice: Choice, folder: Path, calibration: Any) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGILL)
        return {}


class CrashLaterRuntime(GoodRuntime):
    """Crashes when it runs after the artifact is finished."""

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> Any:
        return DoublingGraph(crash_if=folder / "artifact.json")


class HangRuntime(GoodRuntime):
    """Never comes to an end, and leaves a file in the temporary folder."""

    def convert(self, source: Any, choice: Choice, folder: Path, calibration: Any) -> dict[str, Any]:
        Path(os.environ["TMPDIR"], "left").write_text("2", encoding="ascii")
        while True:
            time.sleep(1)


class WrongRuntime(GoodRuntime):
    """A little off."""

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> Any:
        return DoublingGraph(1.01)


class HungryRuntime(GoodRuntime):
    """Takes all the memory it can get."""

    def convert(self, source: Any, choice: Choice, folder: Path, calibration: Any) -> dict[str, Any]:
        taken = []
        while True:
            taken.append(b"1" * (16 << 20))


class ClumsyRuntime(GoodRuntime):
    """Says no."""

    def convert(self, source: Any, choice: Choice, folder: Path, calibration: Any) -> dict[str, Any]:
        raise RuntimeError("unsupported operator: aten::wobble")


class SlowRuntime(GoodRuntime):
    """Takes its time."""

    def load(self, folder: Path, choice: Choice, signature: Signature, tuning: Tuning) -> Any:
        return DoublingGraph(pause_s=0.05)
