"""Two models on the same labelled set: accuracy with an interval, speed, size, and the pictures that changed."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from boxwright.core.errors import DataError, UsageError
from boxwright.core.files import write_whole
from boxwright.core.timing import Timing, hardware_line
from boxwright.data.formats import read_records
from boxwright.data.records import Records
from boxwright.tasks.compare_report import make_comparison_page
from boxwright.tasks.evaluate import collect
from boxwright.tasks.models import find_model
from boxwright.tasks.predict.predictor import Predictor

TIMED_IMAGES = 30
_WARM_IMAGES = 2
Open = Callable[[str | Path], Predictor]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One of the two models.

    Attributes:
        name: as it was given.
        metrics: a `CocoMetrics`.
        timing: one image at a time, from the file to its boxes.
        size_mb: of the file or the artifact folder.
        threshold: the score threshold with the best F1; pictures show boxes from there on.
    """

    name: str
    metrics: Any  # CocoMetrics; its module needs an optional package
    timing: Timing
    size_mb: float
    threshold: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "model": self.name,
            "AP": self.metrics.AP,
            "AP50": self.metrics.AP50,
            "latency_ms": round(self.timing.median_ms, 3),
            "p95_ms": round(self.timing.p95_ms, 3),
            "size_mb": round(self.size_mb, 3),
            "threshold": round(self.threshold, 6),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How the second model differs from the first.

    Attributes:
        first: the first model.
        second: the second.
        difference: a `Difference`: AP with its interval, by class, and by image.
        records: the set; images that can't be read are left out of the scores.
        failures: how many those are.
        report: the page, if one was asked for.
    """

    first: Contender
    second: Contender
    difference: Any  # Difference; its module needs an optional package
    records: Records
    failures: int
    report: Path | None = None

    def drop(self, *, sure: bool = False) -> float:
        """Return how much lower the second AP is; with `sure`, the upper end of the interval of that."""
        change = self.difference.ap
        return -float(change.low if sure else change.value)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; differences are second minus first."""
        ids = self.difference.first.verdicts.image_ids
        files = {int(i): self.records.relative_path(at) for at, i in enumerate(self.records.image_ids.tolist())}
        values: dict[str, Any] = {
            "first": self.first.to_dict(),
            "second": self.second.to_dict(),
            "AP_change": asdict(self.difference.ap),
            "per_class": {
                name: None if change is None else asdict(change) for name, change in self.difference.per_class.items()
            },
            "speedup": round(self.first.timing.median_ms / max(self.second.timing.median_ms, 1e-9), 4),
            "images": len(ids),
            "failures": self.failures,
            "changed": [
                {
                    **asdict(change),
                    "image": int(ids[change.image]),
                    "file": files[int(ids[change.image])],
                    "balance": change.balance,
                }
                for change in self.difference.images
            ],
        }
        return values | ({} if self.report is None else {"report": str(self.report)})

    def lines(self) -> list[str]:
        """Return the comparison as text lines."""
        one, other, change = self.first, self.second, self.difference.ap
        classes = {name: c for name, c in self.difference.per_class.items() if c is not None and c.value}
        worst, *_ = [*sorted(classes, key=lambda name: classes[name].value), None]
        best, *_ = [*sorted(classes, key=lambda name: -classes[name].value), None]
        lines = [
            f"A  {one.name}",
            f"B  {other.name}",
            f"AP        {one.metrics.AP:.4f} -> {other.metrics.AP:.4f}  {_signed(change.value)} "
            f"(95% interval {_signed(change.low)} to {_signed(change.high)})",
            f"latency   {one.timing.median_ms:.2f} ms -> {other.timing.median_ms:.2f} ms  "
            f"{one.timing.median_ms / max(other.timing.median_ms, 1e-9):.2f}x as fast",
            f"size      {one.size_mb:.2f} MB -> {other.size_mb:.2f} MB",
        ]
        if worst is not None and classes[worst].value < 0:
            lines.append(f"worst     {worst} {_signed(classes[worst].value)}")
        if best is not None and classes[best].value > 0:
            lines.append(f"best      {best} {_signed(classes[best].value)}")
        images = self.difference.images
        better, worse = sum(c.balance > 0 for c in images), sum(c.balance < 0 for c in images)
        lines.append(f"images    {better} better, {worse} worse, of {len(self.difference.first.verdicts.image_ids)}")
        return lines


def compare(
    first: str | Path,
    second: str | Path,
    data: str | Path | Records,
    *,
    load: Open,
    batch: int = 8,
    limit: int | None = None,
    progress: Progress | None = None,
    allow_outside: bool = False,
    report: Path | None = None,
    conditions: Mapping[str, str] | None = None,
) -> Comparison:
    """Return how the second model differs from the first on a labelled set.

    Args:
        first: a model: a name, a file or an artifact folder.
        second: another.
        data: a labelled set, or records.
        load: opens a model as a predictor, with the thresholds to score it at.
        batch: how many images go through the network at once while scoring.
        limit: only this many images, the first ones.
        progress: called with what is done, the number of images done and of all.
        allow_outside: also read files that the set names outside of its folder.
        report: a folder for `compare.html` and `compare.json`.
        conditions: what the page says about how this was measured.

    Raises:
        DataError: the set can't be read, or none of its images can.
        CheckpointError: a model can't be used, or does not know the set's classes.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit={limit!r} must be at least 1.")
    records = data if isinstance(data, Records) else read_records(data, allow_outside=allow_outside)
    records = records if limit is None else records.select(range(min(limit, len(records))))
    with load(first) as one, load(second) as other:
        evaluators, failures = [], 0
        for letter, predictor in (("A", one), ("B", other)):
            advance = None if progress is None else _named(progress, f"Scoring {letter}")
            evaluator, failed = collect(predictor, records, batch=batch, progress=advance)
            if not len(evaluator):
                raise DataError(f"None of the {len(records)} images could be read. First: {failed[0].error}")
            evaluators.append(evaluator)
            failures = len(failed)
        readable = set(evaluators[0].state()["image_ids"].tolist())
        paths = [records.path(at) for at, i in enumerate(records.image_ids.tolist()) if i in readable]
        timings = _time_in_turns((one, other), paths)
    from boxwright.evaluation.difference import compare_detections

    difference = compare_detections(*evaluators)
    contenders = [
        Contender(
            name=str(model),
            metrics=evaluator.evaluate(),
            timing=timing,
            size_mb=_size_mb(find_model(model)),
            threshold=side.threshold,
        )
        for model, evaluator, timing, side in zip(
            (first, second), evaluators, timings, (difference.first, difference.second), strict=True
        )
    ]
    result = Comparison(
        first=contenders[0],
        second=contenders[1],
        difference=difference,
        records=records,
        failures=failures,
        report=None if report is None else report / "compare.html",
    )
    if report is not None:
        report.mkdir(parents=True, exist_ok=True)
        said = {**(conditions or {}), "machine": hardware_line()}
        write_whole(report / "compare.json", json.dumps(result.to_dict() | {"conditions": said}, ensure_ascii=False))
        write_whole(report / "compare.html", make_comparison_page(result, said))
    return result


def _named(progress: Progress, name: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(name, done, total)


def _time_in_turns(predictors: tuple[Predictor, Predictor], paths: list[Path]) -> tuple[Timing, Timing]:
    """Return the time of each for one image, from its file to its boxes; they take turns, so that noise hits both."""
    samples: tuple[list[float], list[float]] = ([], [])
    for predictor in predictors:
        for path in islice(paths, _WARM_IMAGES):
            predictor(path)
    for turn, path in enumerate(paths[:TIMED_IMAGES]):
        for at in (0, 1) if turn % 2 == 0 else (1, 0):
            start = perf_counter()
            predictors[at](path)
            samples[at].append((perf_counter() - start) * 1000)
    return Timing(samples_ms=tuple(samples[0])), Timing(samples_ms=tuple(samples[1]))


def _size_mb(path: Path) -> float:
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(p.stat().st_size for p in files) / 1e6


def _signed(value: float) -> str:
    return f"{value:+.4f}"
