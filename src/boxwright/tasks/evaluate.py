"""Scoring a detector on a labelled set: COCO AP over all images. It needs no torch for `.onnx` and artifacts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import CheckpointError, DataError, UsageError, shorten
from boxwright.core.log import get_logger
from boxwright.core.packages import require
from boxwright.core.timing import Stopwatch
from boxwright.core.types import Detections
from boxwright.data.formats import read_records
from boxwright.data.records import Records
from boxwright.tasks.models import ModelOptions, find_model, place_model
from boxwright.tasks.predict.inputs import EncodedImage, Failure
from boxwright.tasks.predict.predictor import Predictor, Thresholds

_log = get_logger(__name__)
Progress = Callable[[int, int], None]
OFFICIAL = Thresholds(conf=0.001, nms=0.65)
"""The thresholds that published YOLOX figures are made with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The score of a detector.

    Attributes:
        metrics: a `CocoMetrics`.
        thresholds: which boxes were scored.
        failures: images that could not be read; they are left out of the score.
        missing: images that the annotations name and that do not exist; left out too.
        images_per_s: speed of this evaluation, decoding included.
        timing: the same in one line, with the time of each step.
        worst: the errors that cost most, as lines of text; empty without a report.
        report: the page, if one was asked for.
    """

    metrics: Any  # CocoMetrics; its module needs an optional package
    thresholds: Thresholds
    failures: tuple[Failure, ...]
    missing: tuple[str, ...]
    images_per_s: float
    timing: str
    worst: tuple[str, ...] = ()
    report: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain JSON values: `AP`, `AP50`, … first."""
        values: dict[str, Any] = self.metrics.to_dict()
        if self.report is not None:
            values |= {"worst": list(self.worst), "report": str(self.report)}
        return values | {
            "conf": self.thresholds.conf,
            "nms": self.thresholds.nms,
            "images_per_s": round(self.images_per_s, 2),
            "missing": list(self.missing),
            "failures": [{"source": f.source, "error": str(f.error)} for f in self.failures],
        }


def load_to_score(
    model: str | Path,
    *,
    thresholds: Thresholds = OFFICIAL,
    options: ModelOptions | None = None,
    trust: bool = False,
    device: str | None = None,
) -> Predictor:
    """Return a predictor of a model; beside an accelerator, a thread per core decodes the images.

    Arguments and errors are those of `Predictor.load`.
    """
    try:
        beside = not place_model(find_model(model), device).is_cpu
    except CheckpointError:
        beside = False  # of a damaged artifact `load` takes another one
    workers = read_cpu().usable_cores if beside else 1
    return Predictor.load(model, thresholds=thresholds, options=options, trust=trust, device=device, workers=workers)


def evaluate(
    predictor: Predictor | str | Path,
    data: str | Path | Records,
    *,
    batch: int = 8,
    limit: int | None = None,
    progress: Progress | None = None,
    allow_outside: bool = False,
    report: Path | None = None,
    conditions: Mapping[str, str] | None = None,
    device: str | None = None,
) -> Evaluation:
    """Return the COCO metrics of a predictor on a labelled set.

    Images that can't be read are left out of the score and listed in `failures`.

    Args:
        predictor: the detector, with the thresholds to score it at (`OFFICIAL` for the headline AP). A name or a path
            is loaded with those.
        data: a COCO json, a folder with one, or records.
        batch: how many images go through the network at once.
        limit: score only this many images, the first ones.
        progress: called with the number of images done and of all.
        allow_outside: also read files that the set names outside of its folder.
        report: also analyse the errors, and write `report.html` and `report.json` into this folder.
        conditions: what the report says about the model and the data.
        device: where a model given by name or path runs (see `Predictor.load`).

    Raises:
        DataError: the set can't be read, or none of its images can.
        CheckpointError: the detector does not know the set's classes.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit={limit!r} must be at least 1.")
    if not isinstance(predictor, Predictor):
        with load_to_score(predictor, device=device) as loaded:
            return evaluate(
                loaded, data, batch=batch, limit=limit, progress=progress, allow_outside=allow_outside, report=report,
                conditions=conditions,
            )  # fmt: skip
    if device is not None:
        raise UsageError(f"device={device!r} does not apply: the predictor has its own. Load it with that device.")
    records = data if isinstance(data, Records) else read_records(data, allow_outside=allow_outside)
    if limit is not None:
        records = records.select(range(min(limit, len(records))))
    evaluator, failures = collect(predictor, records, batch=batch, progress=progress)
    if not len(evaluator):
        raise DataError(f"None of the {len(records)} images could be read. First: {failures[0].error}")
    result = Evaluation(
        metrics=evaluator.evaluate(),
        thresholds=predictor.thresholds,
        failures=tuple(failures),
        missing=records.missing,
        images_per_s=len(evaluator) / max(predictor.watch.elapsed_s, 1e-9),
        timing=predictor.watch.report(len(evaluator)),
    )
    return result if report is None else _write_report(report, result, evaluator, records, conditions or {})


def _write_report(
    folder: Path, result: Evaluation, evaluator: Any, records: Records, conditions: Mapping[str, str]
) -> Evaluation:
    from boxwright.evaluation.analysis import analyse
    from boxwright.tasks.evaluation_report import write_report

    analysis = analyse(evaluator)
    said = {**conditions, "thresholds": f"conf {result.thresholds.conf:g}, nms {result.thresholds.nms:g}"}
    said["speed of this evaluation"] = result.timing
    page = write_report(
        folder, analysis, records, said, {k: v for k, v in result.to_dict().items() if k != "per_class"}
    )
    return replace(result, worst=tuple(analysis.worst()), report=page)


def collect(
    predictor: Predictor, records: Records, *, batch: int = 8, progress: Progress | None = None
) -> tuple[Any, list[Failure]]:
    """Return an evaluator with the detections of all images, and the images that could not be read.

    Raises:
        CheckpointError: the detector does not know the set's classes.
    """
    mapping = match_classes(predictor.names, records.names)
    require("hotcoco", extra="eval", by="Scoring")
    from boxwright.evaluation.coco import CocoEvaluator

    evaluator = CocoEvaluator(records.names)
    failures: list[Failure] = []
    predictor.watch = Stopwatch()  # times this evaluation alone
    paths = map(records.path, range(len(records)))
    images = (EncodedImage(source=str(path), data=path) for path in paths)
    # A failure takes its turn too, so the position in the stream is the position in the set.
    for at, item in enumerate(predictor.stream(images, batch=batch)):
        if isinstance(item, Failure):
            failures.append(item)
            _log.warning("Left out: %s", item.error)
        else:
            evaluator.add(
                image_id=int(records.image_ids[at]),
                size_hw=item.detections.size_hw,
                truth_boxes_xyxy=records.boxes(at),
                truth_class_ids=records.class_ids_of(at),
                truth_crowd=records.crowd_of(at),
                truth_areas=records.areas_of(at),
                detections=_translate(item.detections, mapping, records.names),
            )
        if progress is not None:
            progress(at + 1, len(records))
    return evaluator, failures


def match_classes(model_names: Sequence[str], data_names: Sequence[str]) -> NDArray[np.int64]:
    """Return for each class of the model its index among the set's classes, or -1 where the set has no such class.

    Classes are matched by name; if the model's have no names, by position, which needs as many as the set has.

    Raises:
        CheckpointError: the set has classes that the model does not know.
    """
    position = {name: i for i, name in enumerate(data_names)}
    unknown = [name for name in data_names if name not in model_names]
    if not unknown:
        return np.array([position.get(name, -1) for name in model_names], np.int64)
    unnamed = all(name == f"class_{i}" for i, name in enumerate(model_names))
    if unnamed and len(model_names) == len(data_names):
        _log.warning("The model's classes have no names; they are matched in the data set's order.")
        return np.arange(len(model_names), dtype=np.int64)
    raise CheckpointError(
        f"The model knows {len(model_names)} classes ({shorten(model_names)}), but the data set has {len(data_names)}, "
        f"of which it does not know {shorten(unknown)}. Use the model that was trained for these classes, or name its "
        "classes with --names."
    )


def _translate(found: Detections, mapping: NDArray[np.int64], names: tuple[str, ...]) -> Detections:
    class_ids = mapping[found.class_ids]
    known = class_ids >= 0
    return Detections(
        boxes_xyxy=found.boxes_xyxy[known],
        scores=found.scores[known],
        class_ids=class_ids[known],
        names=names,
        size_hw=found.size_hw,
    )
