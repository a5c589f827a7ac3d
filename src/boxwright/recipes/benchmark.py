"""Timing models that are there already, side by side. Needs no torch where the models need none."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import BoxwrightError, CheckpointError, ConversionError, UsageError
from boxwright.core.log import get_logger
from boxwright.core.signature import Array, Port, Signature
from boxwright.core.structure import flatten
from boxwright.core.timing import hardware_line
from boxwright.optimize.process import Limits, open_nursery
from boxwright.optimize.timing import ArtifactTarget, Latency, RaceRules, Target, race, write_inputs
from boxwright.recipes.models import find_model, open_model
from boxwright.runtimes.artifact import is_artifact, read_artifact, read_golden
from boxwright.runtimes.base import Graph, Session, Tuning, one_by_one

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    """One model.

    Attributes:
        model: as it was named.
        latency_ms: the median; None, as the other figures, if the model can't be run.
        p95_ms: what 95 of 100 runs stay within.
        ratio: how many times faster it is than the first one that runs.
        peak_mb: the most memory that its process had in use.
        runs: how many were timed.
        note: why there are no figures, or what else must be known to compare them.
        code: what the command line ends with because of it.
    """

    model: str
    latency_ms: float | None = None
    p95_ms: float | None = None
    ratio: float | None = None
    peak_mb: float | None = None
    runs: int = 0
    note: str = ""
    code: int = 0

    def line(self, width: int) -> str:
        """Return it for people, the name in so many columns."""
        if self.latency_ms is None or self.p95_ms is None or self.ratio is None or self.peak_mb is None:
            return f"{self.model:{width}}  {self.note}"
        figures = f"{self.latency_ms:10.2f}  {self.p95_ms:7.2f}  {self.ratio:5.2f}x  {self.peak_mb:7.0f}"
        return f"{self.model:{width}}  {figures}  {self.note}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Models timed in turns, and how."""

    rows: tuple[BenchmarkRow, ...]
    batch: int
    threads: int
    machine: str

    @property
    def exit_code(self) -> int:
        """What the command line ends with: 0, or the code of the first model that could not be run."""
        return next((row.code for row in self.rows if row.code), 0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "rows": [{k: v for k, v in asdict(row).items() if k != "code"} for row in self.rows],
            "batch": self.batch,
            "threads": self.threads,
            "machine": self.machine,
        }

    def lines(self) -> list[str]:
        """Return the same for people."""
        width = max(len(row.model) for row in self.rows)
        return [
            f"{'model':{width}}  latency ms   p95 ms   ratio  peak MB",
            *(row.line(width) for row in self.rows),
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
        self.suppresses = getattr(session, "suppresses", False)
        batch = getattr(session, "batch", None)  # a session would fill up what is fewer, and take more apart
        port = Port(name="images", dtype="float32", shape=(batch, 3, *session.spec.size_hw))
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
    known = [_inspect(find_model(model)) for model in models]
    count = threads or cpu.usable_cores
    some = cpu.cores[:count] if threads is not None else ()
    limits = Limits(time_s=timeout_s, threads=count, cores=tuple(sorted(c for core in some for c in core.cpus)))
    # Named by number: a path may not be the name of a log file, and a model may be there twice.
    targets = {str(i): one.target for i, one in enumerate(known) if one.error is None}
    found = _race(targets, _make_inputs(known, batch), runs, limits) if targets else {}
    first = next((latency.timing.median_ms for latency in found.values() if latency.timing is not None), 0.0)
    rows = [_make_row(str(model), known[i], found.get(str(i)), first) for i, model in enumerate(models)]
    return Benchmark(rows=tuple(rows), batch=batch, threads=count, machine=hardware_line())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is known of a model before it runs.

    Attributes:
        path: its file or folder.
        signature: what it takes; None where that shows when it runs.
        note: what a reader of the table must know.
        error: why it can't be run.
    """

    path: Path
    signature: Signature | None = None
    note: str = ""
    error: BoxwrightError | None = None

    @property
    def target(self) -> Target:
        return ArtifactTarget(self.path) if is_artifact(self.path) else ModelTarget(self.path)


def _inspect(path: Path) -> _Known:
    """Return what a model says of itself; one that is damaged must not keep the others from being timed."""
    try:
        if is_artifact(path):
            return _Known(path=path, signature=read_artifact(path).signature)
        if path.suffix.lower() != ".onnx":
            return _Known(path=path)
        graph = _SessionGraph(open_model(path))
        graph.close()
    except BoxwrightError as error:
        return _Known(path=path, error=error)
    note = "with the suppression inside the file" if graph.suppresses else ""
    return _Known(path=path, signature=graph.signature, note=note)


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


def _make_row(model: str, known: _Known, latency: Latency | None, first_ms: float) -> BenchmarkRow:
    if known.error is not None:
        return BenchmarkRow(model=model, note=str(known.error), code=known.error.exit_code)
    if latency is None or latency.timing is None:
        why = "" if latency is None else f": {latency.failure}"
        return BenchmarkRow(model=model, note=f"It does not run{why}.", code=ConversionError.exit_code)
    timing = latency.timing
    return BenchmarkRow(
        model=model,
        latency_ms=timing.median_ms,
        p95_ms=timing.p95_ms,
        ratio=first_ms / timing.median_ms,
        peak_mb=latency.peak_bytes / 2**20,
        runs=timing.runs,
        note=known.note,
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
        if one.signature is not None:
            return one.signature.inputs[0].shape[2:]  # type: ignore[return-value] # of a detector: two numbers
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
