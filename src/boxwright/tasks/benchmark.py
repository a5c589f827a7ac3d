"""Timing models that are there already, side by side. Needs no torch where the models need none."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import BoxwrightError, CheckpointError, ConversionError, UsageError
from boxwright.core.log import get_logger
from boxwright.core.signature import Array, Signature
from boxwright.core.timing import Timing, hardware_line
from boxwright.optimize.process import Limits, open_nursery
from boxwright.optimize.timing import ArtifactTarget, Latency, RaceRules, Target, race, write_inputs
from boxwright.runtimes.artifact import is_artifact, open_graph, read_artifact, read_golden
from boxwright.runtimes.autopilot import Arrangement, check_hint
from boxwright.runtimes.base import Graph, Hint, Tuning, one_by_one
from boxwright.tasks.models import arrange, find_model, is_converted, open_model

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    """One model.

    Attributes:
        model: as it was named.
        latency_ms: the median; None, as the other figures, if the model can't be run.
        p95_ms: what 95 of 100 runs stay within.
        ratio: how many times faster it is than the first one that runs.
        peak_mb: the most memory that its process had in use; None if it had several.
        runs: how many were timed.
        note: why there are no figures, or what else must be known to compare them.
        code: what the command line ends with because of it.
        arrangement: how it used the machine, where a hint has decided that.
    """

    model: str
    latency_ms: float | None = None
    p95_ms: float | None = None
    ratio: float | None = None
    peak_mb: float | None = None
    runs: int = 0
    note: str = ""
    code: int = 0
    arrangement: Arrangement | None = None

    def line(self, width: int) -> str:
        """Return it for people, the name in so many columns."""
        if self.latency_ms is None or self.p95_ms is None or self.ratio is None:
            return f"{self.model:{width}}  {self.note}"
        peak = "-" if self.peak_mb is None else f"{self.peak_mb:.0f}"
        figures = f"{self.latency_ms:10.2f}  {self.p95_ms:7.2f}  {self.ratio:5.2f}x  {peak:>7}"
        more = [text for text in (self.arrangement.name if self.arrangement else "", self.note) if text]
        return f"{self.model:{width}}  {figures}  {'; '.join(more)}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values = {name: getattr(self, name) for name in BenchmarkRow.__slots__ if name not in ("code", "arrangement")}
        return values | {"arrangement": None if self.arrangement is None else self.arrangement.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Models timed in turns, and how.

    Attributes:
        rows: a model each.
        batch: rows of one request.
        threads: computing threads; None where a hint has chosen them for each model.
        machine: the hardware.
        hint: what the models were arranged for.
        requests: how many requests one timed run had; the figures are for one of them.
    """

    rows: tuple[BenchmarkRow, ...]
    batch: int
    threads: int | None
    machine: str
    hint: Hint | None = None
    requests: int = 1

    @property
    def exit_code(self) -> int:
        """What the command line ends with: 0, or the code of the first model that could not be run."""
        return next((row.code for row in self.rows if row.code), 0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "batch": self.batch,
            "threads": self.threads,
            "machine": self.machine,
            "hint": self.hint,
            "requests": self.requests,
        }

    def lines(self) -> list[str]:
        """Return the same for people."""
        width = max(len(row.model) for row in self.rows)
        how = f"{self.threads} threads" if self.hint is None else f"for {self.hint}"
        if self.requests > 1:
            how += f": {self.requests} requests in a run, times are for one of them"
        return [
            f"{'model':{width}}  latency ms   p95 ms   ratio  peak MB",
            *(row.line(width) for row in self.rows),
            f"batch {self.batch}, {how}, {self.machine}",
        ]

    def explain(self) -> str:
        """Return what a hint has chosen for each model, and why."""
        said = [f"{r.model}\n{r.arrangement.explain()}" for r in self.rows if r.arrangement is not None]
        return "\n".join(said) or "There is no artifact and no .onnx file that anything could be chosen for."


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """A detector in a file (.pth, .safetensors, .onnx): run as `predict` runs it."""

    path: Path

    def open(self, tuning: Tuning) -> Graph:  # noqa: ARG002  such a session has its child's cores and threads
        """Return it loaded."""
        return open_model(self.path).graph


@dataclass(frozen=True, slots=True)
class HintTarget:
    """A model arranged for a hint, so many requests in one timed run; weights have no arrangement."""

    path: Path
    arrangement: Arrangement | None
    requests: int

    def open(self, tuning: Tuning) -> Graph:  # noqa: ARG002  the arrangement says it all
        """Return it loaded."""
        own = None if self.arrangement is None else self.arrangement.tuning
        graph = open_graph(self.path, own) if is_artifact(self.path) else open_model(self.path, None, own).graph
        if self.requests == 1:
            return graph
        return _Many(graph, self.requests, 1 if self.arrangement is None else self.arrangement.side_by_side)


class _Many:
    """Several equal requests as one, computed side by side by so many threads, as `predict` does it."""

    def __init__(self, graph: Graph, requests: int, side_by_side: int) -> None:
        self.signature = graph.signature
        self._graph, self._requests = graph, requests
        self._pool = ThreadPoolExecutor(side_by_side)

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return list(self._pool.map(self._graph.run, [inputs] * self._requests))[-1]

    def run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        return one_by_one(self, requests)

    def close(self) -> None:
        self._pool.shutdown()
        self._graph.close()


def benchmark(
    models: Sequence[str | Path],
    *,
    batch: int = 1,
    threads: int | None = None,
    runs: int = 100,
    timeout_s: float = 600.0,
    hint: Hint | None = None,
) -> Benchmark:
    """Return the latency of several models that took turns, each in a process of its own.

    Args:
        models: artifact folders of any model, or detectors in files. All must take the same inputs. The inputs are
            those that an artifact keeps for its check.
        batch: rows of one request.
        threads: computing threads; None for one a usable physical core.
        runs: timed runs of each, at most.
        timeout_s: how long loading one of them may take.
        hint: choose threads, streams and processes of each artifact and ONNX file from the cores and the quota: with
            "latency" one request at a time is timed, with "throughput" many side by side. Weights run as they are,
            one request at a time.

    Raises:
        UsageError: fewer than one model is given, or they take different inputs, or not this batch.
        CheckpointError: a model can't be found. One whose files are damaged is a row with the reason, as is one that
            does not run.
    """
    if not models:
        raise UsageError("There is nothing to time. Name at least one artifact folder.")
    cpu = read_cpu()
    if threads is not None and not 1 <= threads <= len(cpu.allowed):
        raise UsageError(f"threads={threads!r} is not possible: this process may use {len(cpu.allowed)} cpus.")
    if batch < 1:
        raise UsageError(f"batch={batch!r} must be at least 1.")
    if hint is not None:
        check_hint(hint)
        if threads is not None:
            raise UsageError(f"hint={hint!r} chooses the threads itself. Leave out the hint or threads={threads!r}.")
    known = [_inspect(find_model(model), hint) for model in models]
    requests = 1
    if hint == "throughput":  # enough to keep every stream of every instance at work, the same number for all
        requests = 4 * max([2, *(one.arrangement.side_by_side for one in known if one.arrangement is not None)])
    count = threads or cpu.usable_cores
    some = cpu.cores[:count] if threads is not None else ()
    limits = Limits(time_s=timeout_s, threads=count, cores=tuple(sorted(c for core in some for c in core.cpus)))
    # Named by number: a path may not be the name of a log file, and a model may be there twice.
    targets = {str(i): one.target(hint, requests) for i, one in enumerate(known) if one.error is None}
    found = _race(targets, _make_inputs(known, batch), runs, limits) if targets else {}
    timings = {
        name: Timing(samples_ms=tuple(ms / requests for ms in latency.timing.samples_ms))
        for name, latency in found.items()
        if latency.timing is not None
    }
    first = next((timing.median_ms for timing in timings.values()), 0.0)
    rows = [
        _make_row(str(model), known[i], found.get(str(i)), timings.get(str(i)), first) for i, model in enumerate(models)
    ]
    return Benchmark(
        rows=tuple(rows),
        batch=batch,
        threads=count if hint is None else None,
        machine=hardware_line(),
        hint=hint,
        requests=requests,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is known of a model before it runs.

    Attributes:
        path: its file or folder.
        signature: what it takes; None where that shows when it runs.
        size_hw: the input size of a detector in an ONNX file.
        note: what a reader of the table must know.
        error: why it can't be run.
        arrangement: what a hint has chosen for it.
    """

    path: Path
    signature: Signature | None = None
    size_hw: tuple[int, int] | None = None
    note: str = ""
    error: BoxwrightError | None = None
    arrangement: Arrangement | None = None

    def target(self, hint: Hint | None, requests: int) -> Target:
        if hint is not None:
            return HintTarget(self.path, self.arrangement, requests)
        return ArtifactTarget(self.path) if is_artifact(self.path) else ModelTarget(self.path)


def _inspect(path: Path, hint: Hint | None) -> _Known:
    """Return what a model says of itself; one that is damaged must not keep the others from being timed."""
    try:
        if not is_converted(path):
            return _Known(path=path)
        arrangement = None if hint is None else arrange(path, hint)
        if is_artifact(path):
            return _Known(path=path, signature=read_artifact(path).signature, arrangement=arrangement)
        session = open_model(path)
        signature = session.graph.signature
        session.close()
    except BoxwrightError as error:
        return _Known(path=path, error=error)
    note = "with the suppression inside the file" if session.suppresses else ""
    return _Known(path=path, signature=signature, size_hw=session.spec.size_hw, note=note, arrangement=arrangement)


def _race(targets: Mapping[str, Target], inputs: Sequence[Array], runs: int, limits: Limits) -> dict[str, Latency]:
    with open_nursery() as nursery:
        file = nursery.folder / "inputs.npz"
        write_inputs(tuple(inputs), file)
        rules = RaceRules(runs=runs, early_stop=None)
        found = race(nursery, targets, file, rules=rules, limits=limits, logs=nursery.folder)
        for name, latency in found.items():
            log = nursery.folder / f"{name}.log"
            if latency.timing is None and log.is_file():
                _log.info("%s", log.read_text(encoding="utf-8", errors="replace").strip()[-500:])
    return found


def _make_row(
    model: str, known: _Known, latency: Latency | None, timing: Timing | None, first_ms: float
) -> BenchmarkRow:
    if known.error is not None:
        return BenchmarkRow(model=model, note=str(known.error), code=known.error.exit_code)
    if latency is None or timing is None:
        why = "" if latency is None else f": {latency.failure}"
        return BenchmarkRow(model=model, note=f"It does not run{why}.", code=ConversionError.exit_code)
    elsewhere = known.arrangement is not None and not known.arrangement.here
    return BenchmarkRow(
        model=model,
        latency_ms=timing.median_ms,
        p95_ms=timing.p95_ms,
        ratio=first_ms / timing.median_ms,
        peak_mb=None if elsewhere else latency.peak_bytes / 2**20,
        runs=timing.runs,
        note=known.note,
        arrangement=known.arrangement,
    )


def _make_inputs(known: Sequence[_Known], batch: int) -> tuple[Array, ...]:
    """Return inputs that all of the models take: the golden ones of the first artifact, repeated to the batch."""
    usable = [one for one in known if one.error is None]
    artifact = next((one.path for one in usable if is_artifact(one.path)), None)
    if artifact is not None:
        golden, _ = read_golden(artifact)
        inputs = tuple(_repeat(a, batch) if a.ndim else a for a in golden)
    else:
        height, width = _find_size(usable)
        y, x = np.mgrid[:height, :width].astype(np.float32)
        inputs = (_repeat(np.stack((x % 255, y % 255, (x + y) % 255))[None], batch),)
    for one in usable:
        try:
            if one.signature is not None:
                one.signature.check(inputs)
        except UsageError as error:
            raise UsageError(
                f"{str(one.path)!r} does not take the inputs of the others, or not batch={batch!r}: {error}"
            ) from error
    return inputs


def _find_size(known: Sequence[_Known]) -> tuple[int, int]:
    """Return the input size of the first detector that tells it; a file of weights must be opened for that."""
    for one in known:
        if one.size_hw is not None:
            return one.size_hw
    problem = CheckpointError("There is no model whose input size is known.")
    for one in known:
        try:
            session = open_model(one.path)
        except CheckpointError as error:
            problem = error  # if another one tells the size, this becomes a row with the reason when it is to run
            continue
        session.close()
        return session.spec.size_hw
    raise problem


def _repeat(array: Array, rows: int) -> Array:
    return np.concatenate([array] * -(-rows // len(array)))[:rows]
