"""Comparable latencies: every model in its own warm child, taking turns, so that noise affects all alike."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.core.log import get_logger
from boxwright.core.memory import read_memory
from boxwright.core.timing import Timing
from boxwright.optimize.case import Inputs
from boxwright.optimize.process import Channel, Child, ChildFailed, Limits, Nursery, peak_bytes
from boxwright.runtimes.base import Graph, Tuning

_log = get_logger(__name__)
_TURN_RUNS = 5
_TRIAL_ROUNDS = 2
_WARM_RUNS = 3
_WARM_S = 0.2
_SPARE_BYTES = 256 << 20


Target = Callable[[Tuning], Graph]
"""Opens a model in a child; it must be picklable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long a model's runs took, or why there is no timing; `stopped` if it was too slow to time to the end.

    A run ends when its outputs are in the host's memory, on any device. `device_bytes` is what the process held of an
    accelerator's own memory.
    """

    timing: Timing | None = None
    peak_bytes: int = 0
    device_bytes: int = 0
    stopped: bool = False
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceRules:
    """How models are timed against each other.

    Attributes:
        runs: timed runs of each model, at most.
        time_s: seconds of timed runs for each model; slow models get fewer runs, but never fewer than three rounds.
        baseline: the name of the model that slow ones are compared with.
        early_stop: after two rounds, stop timing a model whose median is this many times the baseline's.
    """

    runs: int = 100
    time_s: float = 10.0
    baseline: str = ""
    early_stop: float | None = 3.0


def _run_when_asked(target: Target, inputs: Path, threads: int, channel: Channel) -> tuple[int, int]:
    """Load a model in a child, warm it up, run it when the parent asks, and return its memory in bytes.

    That is the peak of the process, and what it held of a device at the end.
    """
    channel.enter("load")
    graph = target(Tuning(threads=threads))
    with np.load(inputs) as file:
        arrays = graph.signature.check([file[name] for name in file.files])
    channel.enter("forward")
    start_s = time.perf_counter()
    for _ in range(_WARM_RUNS):
        graph.run(arrays)
    while time.perf_counter() - start_s < _WARM_S:  # quick models need more runs to settle
        graph.run(arrays)

    def handle(question: dict[str, Any]) -> Any:
        if question["do"] == "end":
            return None
        graph.run(arrays)  # not timed: the caches hold other models' data
        times_ms = []
        for _ in range(question["runs"]):
            before_s = time.perf_counter()
            graph.run(arrays)
            times_ms.append((time.perf_counter() - before_s) * 1000)
        return times_ms

    channel.answer(handle)
    held = peak_bytes(), int(getattr(graph, "device_bytes", 0))
    graph.close()
    return held


def race(
    nursery: Nursery,
    targets: Mapping[str, Target],
    inputs: Inputs,
    *,
    rules: RaceRules,
    limits: Limits,
    logs: Path,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Latency]:
    """Return the latency of several models, each loaded in its own child; the children take turns.

    While one runs, the others are stopped (SIGSTOP), so that their spinning threads cost it nothing. If memory does
    not hold all models at once, they run in waves, each of which includes the baseline. `advance` is called when a
    model is done.
    """
    file = nursery.folder / "inputs.npz"
    np.savez(file, *inputs)
    results: dict[str, Latency] = {}
    first = [name for name in targets if name == rules.baseline]
    waiting = [name for name in targets if name != rules.baseline]
    while waiting or not results:
        children: dict[str, Child] = {}
        try:
            for name in [*first, *waiting]:
                if len(children) > len(first) and not _fits(children.values()):
                    break
                job = partial(_run_when_asked, targets[name], file, limits.threads)
                # One after the other: loading one model must not disturb the warm-up of another.
                children[name] = nursery.start(job, limits=limits, log=logs / f"{name}.log")
                try:
                    children[name].listen()
                    children[name].pause()
                except ChildFailed as error:
                    results[name] = Latency(failure=str(error))
            found = _take_turns({n: c for n, c in children.items() if not results.get(n, Latency()).failure}, rules)
        finally:
            for child in children.values():
                child.close()
        for name, latency in found.items():
            results[name] = _join(results[name], latency) if name in results else latency
        waiting = [name for name in waiting if name not in children]
        for _ in children:
            advance()
        if waiting:
            _log.info("Memory does not hold all models at once; %d are timed after the others.", len(waiting))
    return {name: results[name] for name in targets}


def _fits(children: Iterable[Child]) -> bool:
    """Return whether there is memory for one more model as large as the largest of these."""
    largest = max(child.resident_bytes for child in children)
    return read_memory().usable_bytes > 1.5 * largest + _SPARE_BYTES


def _join(one: Latency, other: Latency) -> Latency:
    if one.timing is None or other.timing is None:
        return one if other.timing is None else other
    samples = one.timing.samples_ms + other.timing.samples_ms
    return replace(one, timing=Timing(samples_ms=samples), peak_bytes=max(one.peak_bytes, other.peak_bytes))


def _take_turns(children: Mapping[str, Child], rules: RaceRules) -> dict[str, Latency]:
    """Return the latency of models that are loaded and warm."""
    results: dict[str, Latency] = {}
    samples: dict[str, list[float]] = {name: [] for name in children}
    waiting, turn = list(children), 0
    while waiting:
        for place in range(len(waiting)):
            name = waiting[(turn + place) % len(waiting)]
            try:
                samples[name] += _take_turn(children[name], samples[name], rules)
            except ChildFailed as error:
                results[name] = Latency(failure=str(error))
        turn += 1
        waiting = [n for n in waiting if n not in results and not _is_done(samples[n], turn, rules)]
        if turn == _TRIAL_ROUNDS:
            for name in [n for n in waiting if _is_hopeless(n, samples, rules)]:
                results[name] = _finish(children[name], samples[name], stopped=True)
                waiting.remove(name)
    return {n: results[n] if n in results else _finish(children[n], samples[n]) for n in children}


def _take_turn(child: Child, sofar_ms: Sequence[float], rules: RaceRules) -> list[float]:
    runs = min(_TURN_RUNS, max(rules.runs - len(sofar_ms), 1))
    if not sofar_ms or sum(sofar_ms) / len(sofar_ms) * runs > rules.time_s * 1000 / 4:
        runs = 1
    times: list[float] = child.ask({"do": "run", "runs": runs})
    child.pause()
    return times


def _is_done(samples_ms: Sequence[float], turn: int, rules: RaceRules) -> bool:
    return len(samples_ms) >= rules.runs or (turn > _TRIAL_ROUNDS and sum(samples_ms) >= rules.time_s * 1000)


def _is_hopeless(name: str, samples: Mapping[str, list[float]], rules: RaceRules) -> bool:
    base = samples.get(rules.baseline)
    if rules.early_stop is None or name == rules.baseline or not base:
        return False
    return float(np.median(samples[name])) > rules.early_stop * float(np.median(base))


def _finish(child: Child, samples_ms: Sequence[float], *, stopped: bool = False) -> Latency:
    try:
        child.send({"do": "end"})
        peak, held = child.result()
    except ChildFailed as error:
        return Latency(failure=str(error))
    timing = Timing(samples_ms=tuple(samples_ms))
    return Latency(timing=timing, peak_bytes=peak, device_bytes=held, stopped=stopped)
