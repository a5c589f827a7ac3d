"""One try in a child process: convert, load, compare with the original, score. A try never raises, it is told."""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from boxwright.core import catalogue
from boxwright.core.errors import MissingDependencyError, UsageError
from boxwright.core.signature import Array
from boxwright.core.types import Precision
from boxwright.optimize.accuracy import Score
from boxwright.optimize.case import Case, read_case
from boxwright.optimize.process import Channel, ChildFailed, Limits, Nursery
from boxwright.runtimes.artifact import open_graph, read_artifact, write_artifact
from boxwright.runtimes.base import Choice, Graph, Tuning
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.parity import BOUNDS, distance

Status = Literal[
    "successful",
    "early stopped",
    "fail to convert",
    "fail to forward",
    "lack dependency",
    "wrong result",
    "over budget",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """How a try ended.

    Attributes:
        status: in a word or two.
        note: the reason, or how it was done.
        score: the accuracy; None where there is none.
        distance: how far the outputs are from the original's (see `runtimes.parity`).
        size_bytes: of the artifact; of the original, its parameters.
        recipe: how it was converted, in the runtime's own words.
        kept: layers that were kept in float for the sake of accuracy.
        score_s: how long scoring took.
        stage: what it was doing when it failed; "" if it did not.
        unfinished: whether something that is to be done for it could not be done this time.
    """

    status: Status
    note: str = ""
    score: Score | None = None
    distance: float | None = None
    size_bytes: int = 0
    recipe: Mapping[str, Any] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    score_s: float = 0.0
    stage: str = ""
    unfinished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialJob:
    """What the child does.

    Attributes:
        case: the file that `write_case` wrote.
        reference: where the original's outputs for the probes are; the original's own trial writes them.
        folder: where the artifact goes.
        choice: how to convert; None for the original itself.
        keep_float: layers that are not quantised or rounded.
        threads: computing threads.
        cache: a folder for statistics that several conversions share.
    """

    case: Path
    reference: Path
    folder: Path
    choice: Choice | None
    keep_float: tuple[str, ...] = ()
    threads: int | None = None
    cache: Path | None = None

    def __call__(self, channel: Channel) -> Tried:
        """Return a successful try, or one with a wrong result."""
        channel.enter("convert")
        case = read_case(self.case)
        if self.choice is None:
            return self._try_original(case, channel)
        write_artifact(
            case.source(),
            self.choice,
            self.folder,
            spec=case.spec,
            calibration=self._calibration(case, self.choice),
            golden=case.probes()[0],
        )
        channel.enter("load")
        artifact = read_artifact(self.folder)
        graph = open_graph(self.folder, Tuning(threads=self.threads))
        try:
            channel.enter("forward")
            found = _worst_distance(graph, case.probes(), self.reference)
            bound = BOUNDS[self.choice.precision]
            size = sum(p.stat().st_size for p in self.folder.rglob("*") if p.is_file())
            if not found <= bound:
                note = (
                    f"its outputs are {found:.3g} away from the original's; {self.choice.precision} explains {bound:g}"
                )
                return Tried(
                    status="wrong result",
                    note=note,
                    distance=found,
                    size_bytes=size,
                    recipe=artifact.recipe,
                    kept=self.keep_float,
                )
            score, score_s = _score(case, graph, channel)
            return Tried(
                status="successful",
                score=score,
                score_s=score_s,
                distance=found,
                size_bytes=size,
                recipe=artifact.recipe,
                kept=self.keep_float,
            )
        finally:
            graph.close()

    def _try_original(self, case: Case, channel: Channel) -> Tried:
        # Imported here: children that only load an artifact of another runtime need no torch.
        from boxwright.runtimes.program import open_original

        source = case.source()
        graph = open_original(source)
        channel.enter("forward")
        outputs = [graph.run(source.signature.check(inputs)) for inputs in case.probes()]
        named: dict[str, Any] = {f"{i}_{j}": a for i, some in enumerate(outputs) for j, a in enumerate(some)}
        np.savez(self.reference, **named)
        score, score_s = _score(case, graph, channel)
        size = sum(t.nbytes for t in (*source.model.parameters(), *source.model.buffers()))
        return Tried(status="successful", score=score, score_s=score_s, distance=0.0, size_bytes=size)

    def _calibration(self, case: Case, choice: Choice) -> Calibration | None:
        if choice.precision is Precision.BF16 and self.keep_float:
            return Calibration(samples=case.probes(), keep_float=self.keep_float)
        if choice.precision is not Precision.INT8:
            return None
        samples = case.calibration()
        if samples:
            return Calibration(samples=samples, keep_float=self.keep_float, cache=self.cache)
        if choice.mode == "integer":  # measures value ranges anew at every run
            return None
        raise UsageError("int8 needs real inputs to measure value ranges on. Give training_data.")


def run_trial(nursery: Nursery, job: TrialJob, *, limits: Limits, log: Path) -> Tried:
    """Return how a try ended, whatever happened to its process; a failed one leaves no artifact."""
    if job.choice is not None:
        try:
            missing = _missing(job.choice.runtime)
        except UsageError as error:
            return Tried(status="fail to convert", note=str(error))
        if missing is not None:
            return Tried(status="lack dependency", note=missing)
    _remove(job.folder)
    try:
        tried: Tried = nursery.run(job, limits=limits, log=log)
    except ChildFailed as error:
        _remove(job.folder)
        if error.lacks_package:
            return Tried(status="lack dependency", note=str(error.cause))
        early = error.stage in ("start", "convert")
        reason = f"while it was scored: {error}" if error.stage == "score" else str(error)
        return Tried(
            status="fail to convert" if early else "fail to forward", note=_in_short(reason), stage=error.stage
        )
    if tried.status == "wrong result":
        _remove(job.folder)
    return tried


def _missing(runtime: str) -> str | None:
    """Return the sentence about packages that a runtime lacks; None if it has all."""
    entry = catalogue.find("runtime", runtime)
    if not entry.missing():
        return None
    try:
        catalogue.load("runtime", runtime)
    except MissingDependencyError as error:
        return str(error)
    return None


def _worst_distance(graph: Graph, probes: Sequence[Sequence[Array]], reference: Path) -> float:
    with np.load(reference) as arrays:
        worst = 0.0
        for i, inputs in enumerate(probes):
            expected = [arrays[f"{i}_{j}"] for j in range(sum(n.startswith(f"{i}_") for n in arrays.files))]
            worst = max(worst, distance(graph.run(graph.signature.check(inputs)), expected))
    return worst


def _score(case: Case, graph: Graph, channel: Channel) -> tuple[Score | None, float]:
    if case.scorer is None:
        return None, 0.0
    channel.enter("score")
    start_s = time.monotonic()
    score = case.scorer.score(graph)
    return score, time.monotonic() - start_s


def _in_short(text: str, most: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
