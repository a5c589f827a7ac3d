"""`boxwright benchmark`: time existing models in turns. Needs no torch where the models need none."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from boxwright.core.errors import BoxwrightError, CheckpointError, ConversionError, UsageError, check_choice
from boxwright.core.log import get_logger
from boxwright.core.signature import Array, Signature
from boxwright.core.timing import hardware_line
from boxwright.optimize.case import Inputs
from boxwright.optimize.process import Limits, open_nursery, share_cores
from boxwright.optimize.timing import Latency, RaceRules, Target, race
from boxwright.runtimes.artifact import is_artifact, open_graph, read_artifact, read_golden
from boxwright.runtimes.autopilot import Arrangement
from boxwright.runtimes.base import Graph, Hint, Tuning, one_by_one
from boxwright.runtimes.trust import check_files
from boxwright.tasks.models import arrange, find_model, is_converted, open_model, place_model

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    """One model.

    Attributes:
        model: as the user named it.
        latency_ms: the median; None, like the other figures, if the model can't be run.
        ratio: how many times faster it is than the first one that runs.
        peak_mb: the peak memory of its process; None if it had several.
        note: why there are no figures, or what else matters when they are compared.
        code: the exit code that it causes.
        arrangement: how it used the machine, if a hint chose that.
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
        """Return a line of the table, with the name padded to `width`."""
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
    """Models timed in turns, and the conditions.

    Attributes:
        batch: images in one request.
        threads: computing threads; None where a hint chose them for each model.
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
        """0, or the exit code of the first model that could not be run."""
        return next((row.code for row in self.rows if row.code), 0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values = {name: getattr(self, name) for name in Benchmark.__slots__}
        return values | {"rows": [row.to_dict() for row in self.rows]}

    def lines(self) -> list[str]:
        """Return the table."""
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
        """Return what a hint chose for each model, and why."""
        said = [f"{r.model}\n{r.arrangement.explain()}" for r in self.rows if r.arrangement is not None]
        return "\n".join(said) or "A hint applies to artifacts and .onnx files; there are none."


class _Many:
    """Several equal requests as one, computed in parallel, as `predict` does it."""

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
    trust: bool = False,
    device: str | None = None,
) -> Benchmark:
    """Return the latency of several models that take turns, each in its own process.

    Args:
        models: artifact folders of any model, or detectors in files. All must take the same inputs: those that the
            first artifact stores for its own check.
        batch: images in one request.
        threads: computing threads; None for one per usable physical core.
        runs: timed runs of each, at most.
        timeout_s: time limit to load one of them.
        hint: choose threads, streams and processes of each artifact and ONNX file from the cores and the quota.
            "latency" times one request at a time, "throughput" many in parallel. Weights run one request at a time.
        trust: run models with code that another user or machine made (see `Predictor.load`).
        device: where weights and ONNX files run, and which one of several an artifact's device is (see
            `Predictor.load`). A run ends when its outputs are in the host's memory.

    Raises:
        UsageError: there are no models, or they take different inputs, or not this batch.
        CheckpointError: a model can't be found. A damaged one, or one that does not run, is a row with the reason.
    """
    if not models:
        raise UsageError("There is nothing to time. Name at least one artifact folder.")
    count, cores = share_cores(threads, "threads")
    if batch < 1:
        raise UsageError(f"batch={batch!r} must be at least 1.")
    if hint is not None:
        check_choice("hint", hint, get_args(Hint))
        if threads is not None:
            raise UsageError(f"hint={hint!r} chooses the threads itself. Leave out the hint or threads={threads!r}.")
    known = [_inspect(model, hint, device, trust=trust) for model in models]
    requests = 1
    if hint == "throughput":  # enough to keep every stream of every instance busy, the same number for all
        requests = 4 * max([2, *(one.row.arrangement.side_by_side for one in known if one.row.arrangement is not None)])
    # Named by number: a path can't name a log file, and a model may be given twice.
    usable = {str(i): one for i, one in enumerate(known) if not one.row.code}
    targets: dict[str, Target] = {
        name: partial(_open, one.path, one.row.arrangement, requests, device) for name, one in usable.items()
    }
    limits = Limits(time_s=timeout_s, threads=count, cores=cores)
    found = _race(targets, _make_inputs([*usable.values()], batch), runs, limits) if usable else {}
    first = next((latency.timing.median_ms for latency in found.values() if latency.timing is not None), 0.0)
    rows = [
        _fill_row(one.row, found[str(i)], first, requests) if str(i) in found else one.row
        for i, one in enumerate(known)
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
    """A model before it runs.

    Attributes:
        path: its file or folder.
        row: its row without figures; with an exit code if it can't be run.
        signature: its inputs; None where they are known only when it runs.
        size_hw: the input size of a detector in an ONNX file.
    """

    path: Path
    row: BenchmarkRow
    signature: Signature | None = None
    size_hw: tuple[int, int] | None = None


def _open(path: Path, arrangement: Arrangement | None, requests: int, device: str | None, tuning: Tuning) -> Graph:
    """Return a model as it is timed: with a hint's own tuning; weights have none, as `predict` runs them.

    `_inspect` has made sure that it may run.
    """
    own = None if arrangement is None else arrangement.tuning
    if is_artifact(path):
        number = place_model(path, device).number
        graph = open_graph(path, replace(own or tuning, number=number), trust=True)
    else:
        graph = open_model(path, None, own, trust=True, device=device).graph
    if requests == 1:
        return graph
    return _Many(graph, requests, 1 if arrangement is None else arrangement.side_by_side)


def _inspect(model: str | Path, hint: Hint | None, device: str | None, *, trust: bool) -> _Known:
    """Return what a model says about itself; a damaged one must not prevent the others from being timed."""
    path, row = find_model(model), BenchmarkRow(model=str(model))
    try:
        place = place_model(path, device)
        if not (is_artifact(path) or place.is_cpu):
            place.check()  # before a child is started for it
        if place.is_cpu and not is_converted(path):
            return _Known(path=path, row=row)
        row = replace(row, arrangement=None if hint is None else arrange(path, hint, place))
        if not is_converted(path):
            return _Known(path=path, row=row)
        if is_artifact(path):
            artifact = read_artifact(path)
            if not trust:
                check_files(path, artifact.files)
            return _Known(path=path, row=row, signature=artifact.signature)
        with closing(open_model(path, trust=trust)) as session:  # on the CPU: what it says is the same
            row = replace(row, note="with the suppression inside the file" if session.suppresses else "")
            return _Known(path=path, row=row, signature=session.graph.signature, size_hw=session.spec.size_hw)
    except BoxwrightError as error:
        return _Known(path=path, row=BenchmarkRow(model=str(model), note=str(error), code=error.exit_code))


def _race(targets: Mapping[str, Target], inputs: Inputs, runs: int, limits: Limits) -> dict[str, Latency]:
    with open_nursery() as nursery:
        rules = RaceRules(runs=runs, early_stop=None)
        found = race(nursery, targets, inputs, rules=rules, limits=limits, logs=nursery.folder)
        for name, latency in found.items():
            log = nursery.folder / f"{name}.log"
            if latency.timing is None and log.is_file():
                _log.info("%s", log.read_text(encoding="utf-8", errors="replace").strip()[-500:])
    return found


def _fill_row(row: BenchmarkRow, latency: Latency, first_ms: float, requests: int) -> BenchmarkRow:
    if latency.timing is None:
        why = f"It does not run: {latency.failure}."
        return BenchmarkRow(model=row.model, note=why, code=ConversionError.exit_code)
    elsewhere = row.arrangement is not None and not row.arrangement.here
    return replace(
        row,
        latency_ms=latency.timing.median_ms / requests,
        p95_ms=latency.timing.p95_ms / requests,
        ratio=first_ms / latency.timing.median_ms,
        peak_mb=None if elsewhere else latency.peak_bytes / 2**20,
        runs=latency.timing.runs,
    )


def _make_inputs(known: Sequence[_Known], batch: int) -> Inputs:
    """Return inputs that all models take: the golden ones of the first artifact, repeated to fill the batch."""
    artifact = next((one.path for one in known if is_artifact(one.path)), None)
    if artifact is not None:
        samples, _ = read_golden(artifact)
    else:
        height, width = _find_size(known)
        y, x = np.mgrid[:height, :width].astype(np.float32)
        samples = [np.stack((x % 255, y % 255, (x + y) % 255))[None]]
    inputs = tuple(np.resize(a, (batch, *a.shape[1:])) if a.ndim else a for a in samples)
    for one in known:
        try:
            if one.signature is not None:
                one.signature.check(inputs)
        except UsageError as error:
            raise UsageError(
                f"{str(one.path)!r} does not take the inputs of the others, or not batch={batch!r}: {error}"
            ) from error
    return inputs


def _find_size(known: Sequence[_Known]) -> tuple[int, int]:
    """Return the input size of the first detector that has one; a file of weights must be opened to see it."""
    problem = CheckpointError("There is no model whose input size is known.")
    for one in sorted(known, key=lambda one: one.size_hw is None):
        try:
            return one.size_hw or open_model(one.path).spec.size_hw
        except CheckpointError as error:
            problem = error  # if another model has a size, this one becomes a failed row later
    raise problem
