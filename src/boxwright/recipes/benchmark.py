"""Timing models that are there already, side by side. Needs no torch where the models need none."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import ConversionError, UsageError
from boxwright.core.signature import Array, Port, Signature
from boxwright.core.structure import flatten
from boxwright.core.timing import Timing, hardware_line
from boxwright.optimize.process import Limits, open_nursery
from boxwright.optimize.timing import ArtifactTarget, Latency, RaceRules, Target, race, write_inputs
from boxwright.recipes.models import find_model, open_model
from boxwright.runtimes.artifact import is_artifact, read_artifact, read_golden
from boxwright.runtimes.base import Graph, Session, Tuning, one_by_one


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    """One model: `ratio` is how many times faster it is than the first one."""

    model: str
    latency_ms: float
    p95_ms: float
    ratio: float
    peak_mb: float
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Models timed in turns, and how."""

    rows: tuple[BenchmarkRow, ...]
    batch: int
    threads: int
    machine: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "rows": [{name: getattr(row, name) for name in BenchmarkRow.__slots__} for row in self.rows],
            "batch": self.batch,
            "threads": self.threads,
            "machine": self.machine,
        }

    def lines(self) -> list[str]:
        """Return the same for people."""
        width = max(len(row.model) for row in self.rows)
        return [
            f"{'model':{width}}  latency ms   p95 ms   ratio  peak MB",
            *(
                f"{r.model:{width}}  {r.latency_ms:10.2f}  {r.p95_ms:7.2f}  {r.ratio:5.2f}x  {r.peak_mb:7.0f}"
                for r in self.rows
            ),
            f"batch {self.batch}, {self.threads} threads, {self.machine}",
        ]


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """A detector in a file (.pth, .safetensors, .onnx): run as `predict` runs it."""

    path: Path

    def open(self, tuning: Tuning) -> Graph:  # noqa: ARG002  such a session has its child's cores and threads
        """Return it loaded."""
        return _SessionGraph(open_model(self.path))


class _SessionGraph:
    """A session behind the graph seam."""

    def __init__(self, session: Session) -> None:
        self._session = session
        _, call = flatten(((np.zeros(1),), {}))
        _, result = flatten(np.zeros(1))
        port = Port(name="images", dtype="float32", shape=(None, 3, *session.spec.size_hw))
        output = Port(name="output", dtype="float32", shape=(None, None, 5 + session.spec.num_classes))
        self.signature = Signature(inputs=(port,), outputs=(output,), call=call, result=result)

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (self._session(inputs[0]),)

    def run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        return one_by_one(self, requests)

    def close(self) -> None:
        self._session.close()


def benchmark(
    models: Sequence[str | Path],
    *,
    batch: int = 1,
    threads: int | None = None,
    runs: int = 100,
    timeout_s: float = 600.0,
) -> Benchmark:
    """Return the latency of several models that took turns, each in a process of its own.

    Args:
        models: artifact folders of any model, or detectors in files. All must take the same inputs. The inputs are
            those that an artifact keeps for its check.
        batch: rows of one request.
        threads: computing threads; None for one a usable physical core.
        runs: timed runs of each, at most.
        timeout_s: how long loading one of them may take.

    Raises:
        UsageError: fewer than one model is given, or they take different inputs, or not this batch.
        CheckpointError: a model can't be found, or its files are damaged.
        ConversionError: a model does not run.
    """
    if not models:
        raise UsageError("There is nothing to time. Name at least one artifact folder.")
    cpu = read_cpu()
    if threads is not None and not 1 <= threads <= len(cpu.allowed):
        raise UsageError(f"threads={threads!r} is not possible: this process may use {len(cpu.allowed)} cpus.")
    paths = [find_model(model) for model in models]
    # Named by number: a path may not be the name of a log file, and a model may be there twice.
    targets: dict[str, Target] = {
        str(i): ArtifactTarget(path) if is_artifact(path) else ModelTarget(path) for i, path in enumerate(paths)
    }
    inputs = _make_inputs(paths, batch)
    count = threads or cpu.usable_cores
    some = cpu.cores[:count] if threads is not None else ()
    limits = Limits(time_s=timeout_s, threads=count, cores=tuple(sorted(c for core in some for c in core.cpus)))
    with open_nursery() as nursery:
        file = nursery.folder / "inputs.npz"
        write_inputs(inputs, file)
        found = race(
            nursery, targets, file, rules=RaceRules(runs=runs, early_stop=None), limits=limits, logs=nursery.folder
        )
        timings = [
            (str(model), _timing(model, found[str(i)], nursery.folder / f"{i}.log"), found[str(i)].peak_bytes)
            for i, model in enumerate(models)
        ]
    first = timings[0][1].median_ms
    rows = [
        BenchmarkRow(
            model=name,
            latency_ms=timing.median_ms,
            p95_ms=timing.p95_ms,
            ratio=first / timing.median_ms,
            peak_mb=peak / 2**20,
            runs=timing.runs,
        )
        for name, timing, peak in timings
    ]
    return Benchmark(rows=tuple(rows), batch=batch, threads=count, machine=hardware_line())


def _timing(model: str | Path, latency: Latency, log: Path) -> Timing:
    if latency.timing is None:
        said = log.read_text(encoding="utf-8", errors="replace").strip()[-500:] if log.is_file() else ""
        raise ConversionError(f"{str(model)!r} does not run: {latency.failure}. {said}".strip())
    return latency.timing


def _make_inputs(paths: Sequence[Path], batch: int) -> tuple[Array, ...]:
    """Return inputs that all of the models take: the golden ones of the first artifact, repeated to the batch."""
    if batch < 1:
        raise UsageError(f"batch={batch!r} must be at least 1.")
    signatures = {path: read_artifact(path).signature for path in paths if is_artifact(path)}
    if signatures:
        golden, _ = read_golden(next(iter(signatures)))
        inputs = tuple(_repeat(a, batch) if a.ndim else a for a in golden)
    else:
        session = open_model(paths[0])
        height, width = session.spec.size_hw
        session.close()
        y, x = np.mgrid[:height, :width].astype(np.float32)
        inputs = (_repeat(np.stack((x % 255, y % 255, (x + y) % 255))[None], batch),)
    for path, signature in signatures.items():
        try:
            signature.check(inputs)
        except UsageError as error:
            raise UsageError(
                f"{str(path)!r} does not take the inputs of the others, or not batch={batch!r}: {error}"
            ) from error
    return inputs


def _repeat(array: Array, rows: int) -> Array:
    return np.concatenate([array] * -(-rows // len(array)))[:rows]
