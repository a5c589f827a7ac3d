"""One trial in a child process: convert, load, compare with the original, score. Failures become rows."""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from boxwright.core import catalogue
from boxwright.core.errors import MissingDependencyError, UsageError
from boxwright.core.files import naming
from boxwright.core.signature import Array
from boxwright.core.types import Precision
from boxwright.devices.chosen import Chosen
from boxwright.optimize.accuracy import Score
from boxwright.optimize.case import Case, read_case
from boxwright.optimize.process import Channel, ChildFailed, Limits, Nursery
from boxwright.runtimes.artifact import convert_and_open
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
_MOST = 300  # characters of a reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How a trial ended.

    Attributes:
        note: the reason for the status, or how it was done.
        distance: how far the outputs are from the original's (see `runtimes.parity`).
        size_bytes: of the artifact; for the original, of its parameters.
        recipe: how it was converted, in the runtime's own words.
        kept: layers that were kept in float for accuracy.
        stage: the stage that failed; "" if none did.
        unfinished: whether a step failed that the next search must repeat.
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
        reference: the original's outputs for the probes; the original's own trial writes them.
        folder: where the artifact goes.
        choice: how to convert; None for the original itself.
        keep_float: layers that are not quantised or rounded.
        cache: a folder for statistics that several conversions share.
        place: the device of the original; a conversion for it runs on the one of its number.
    """

    case: Path
    reference: Path
    folder: Path
    choice: Choice | None
    keep_float: tuple[str, ...] = ()
    threads: int | None = None
    cache: Path | None = None
    place: Chosen = field(default_factory=Chosen)

    def __call__(self, channel: Channel) -> Trial:
        """Return a successful trial, or one with a wrong result."""
        channel.enter("convert")
        case = read_case(self.case)
        if self.choice is None:
            return self._try_original(case, channel)
        first, *others = case.probes()
        artifact, graph = convert_and_open(
            case.source(),
            self.choice,
            self.folder,
            spec=case.spec,
            calibration=self._calibration(case, self.choice),
            golden=first,
            tuning=Tuning(threads=self.threads, number=self.place.number_of(self.choice.device)),
        )
        try:
            channel.enter("forward")
            # Converting has compared the first; the reference saves running the original again for the others.
            found = max(artifact.distance or 0.0, _worst_distance(graph, others, self.reference))
            bound, note, score, score_s = BOUNDS[self.choice.precision], "", None, 0.0
            if found <= bound:
                score, score_s = _score(case, graph, channel)
            else:
                note = (
                    f"its outputs are {found:.3g} away from the original's; {self.choice.precision} explains {bound:g}"
                )
        finally:
            graph.close()
        return Trial(
            status="wrong result" if note else "successful",
            note=note,
            score=score,
            score_s=score_s,
            distance=found,
            size_bytes=sum(p.stat().st_size for p in self.folder.rglob("*") if p.is_file()),
            recipe=artifact.recipe,
            kept=self.keep_float,
        )

    def _try_original(self, case: Case, channel: Channel) -> Trial:
        from boxwright.runtimes.program import open_original  # imports torch, which other children do without

        source = case.source()
        graph = open_original(source, self.place)
        channel.enter("forward")
        outputs = [graph.run(source.signature.check(inputs)) for inputs in case.probes()]
        named: dict[str, Any] = {f"{i}_{j}": a for i, some in enumerate(outputs) for j, a in enumerate(some)}
        with naming(self.reference):
            np.savez(self.reference, **named)
        score, score_s = _score(case, graph, channel)
        size = sum(t.nbytes for t in (*source.model.parameters(), *source.model.buffers()))
        recipe = {} if self.place.is_cpu else {"device": self.place.describe()}
        return Trial(status="successful", score=score, score_s=score_s, distance=0.0, size_bytes=size, recipe=recipe)

    def _calibration(self, case: Case, choice: Choice) -> Calibration | None:
        if choice.precision in (Precision.BF16, Precision.FP16) and self.keep_float:
            return Calibration(samples=case.probes(), keep_float=self.keep_float)
        if choice.precision is not Precision.INT8:
            return None
        samples = case.calibration()
        if samples:
            return Calibration(samples=samples, keep_float=self.keep_float, cache=self.cache)
        if choice.mode == "integer":  # measures value ranges at every run
            return None
        raise UsageError("int8 needs real inputs to measure value ranges on. Give training_data.")


def run_trial(nursery: Nursery, job: TrialJob, *, limits: Limits, log: Path) -> Trial:
    """Return how a trial ended, whatever happened to its process; a failed one leaves no artifact."""
    if job.choice is not None:
        try:
            if catalogue.find("runtime", job.choice.runtime).missing():
                catalogue.load("runtime", job.choice.runtime)
        except MissingDependencyError as error:
            return Trial(status="lack dependency", note=str(error))
        except UsageError as error:
            return Trial(status="fail to convert", note=str(error))
    shutil.rmtree(job.folder, ignore_errors=True)
    try:
        trial: Trial = nursery.run(job, limits=limits, log=log)
    except ChildFailed as error:
        shutil.rmtree(job.folder, ignore_errors=True)
        if isinstance(error.cause, MissingDependencyError):
            return Trial(status="lack dependency", note=str(error.cause))
        reason = " ".join(f"while it was scored: {error}".split() if error.stage == "score" else str(error).split())
        return Trial(
            status="fail to convert" if error.stage in ("start", "convert") else "fail to forward",
            note=reason if len(reason) <= _MOST else reason[: _MOST - 1] + "…",
            stage=error.stage,
        )
    if trial.status == "wrong result":
        shutil.rmtree(job.folder)
    return trial


def _worst_distance(graph: Graph, probes: Sequence[Sequence[Array]], reference: Path) -> float:
    with np.load(reference) as arrays:
        worst = 0.0
        for i, inputs in enumerate(probes, start=1):
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
