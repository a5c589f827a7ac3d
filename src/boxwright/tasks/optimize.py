"""`boxwright optimize`: try every method on a detector, measure its COCO AP, and write the best artifact."""

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import BudgetError, DataError, UsageError
from boxwright.core.files import write_whole, writing
from boxwright.core.log import get_logger, progress_bar
from boxwright.core.signature import Array
from boxwright.core.spec import Spec
from boxwright.core.types import Precision
from boxwright.data.fingerprint import fingerprint
from boxwright.data.formats import find_layout
from boxwright.data.records import Records
from boxwright.data.split import read_splits
from boxwright.evaluation.resample import match_detections, resample_ap
from boxwright.optimize.accuracy import Direction, Score
from boxwright.optimize.candidates import METHODS, ORIGINAL
from boxwright.optimize.config import SearchConfig
from boxwright.optimize.report import Report
from boxwright.optimize.saved_trials import lock_folder
from boxwright.optimize.search import run_search
from boxwright.runtimes.artifact import write_artifact
from boxwright.runtimes.base import Choice, Graph
from boxwright.runtimes.detector import DetectorSession
from boxwright.tasks.evaluate import OFFICIAL, collect, match_classes
from boxwright.tasks.images import CALIBRATION_IMAGES, ImageInputs, find_images, image_paths
from boxwright.tasks.models import WEIGHTS, ModelOptions, find_model
from boxwright.tasks.predict.predictor import Predictor
from boxwright.tasks.run_folders import new_run_folder

_log = get_logger(__name__)
_RUNS = Path("runs/optimize")
_SCORE_BATCH = 8
_PROBES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ApScorer:
    """COCO AP on a labelled set; keeps how each detection was matched, so that draws of the images can be scored."""

    name: ClassVar[str] = "AP"
    direction: ClassVar[Direction] = "max"

    records: Records
    spec: Spec

    def score(self, graph: Graph) -> Score:
        """Return the AP of a loaded detector."""
        predictor = Predictor(DetectorSession(graph, self.spec), OFFICIAL)
        evaluator, failures = collect(predictor, self.records, batch=_SCORE_BATCH)
        if not len(evaluator):
            raise DataError(f"None of the {len(self.records)} images could be read. First: {failures[0].error}")
        matched = match_detections(evaluator)
        return Score(value=float(evaluator.evaluate().AP), count=int(matched["images"]), arrays=matched)

    def resample(self, score: Score, weights: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the AP of other draws of the images."""
        return resample_ap(score.arrays, weights)

    def fingerprint(self) -> str:
        """Return a text that changes with the images' files and labels."""
        return fingerprint(self.records).digest


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorCase:
    """A weight file and images; the network is built in each child."""

    path: Path
    options: ModelOptions
    spec: Spec
    scorer: ApScorer | None
    images: ImageInputs
    calibration_images: ImageInputs
    batch: int

    def source(self) -> Any:
        """Return the network with a batch of real images."""
        from boxwright.runtimes.source import Source
        from boxwright.tasks.checkpoint import read_checkpoint

        model, _ = read_checkpoint(self.path, self.options)
        return Source.of(model, self.timing_inputs())

    def probes(self) -> Sequence[tuple[Array, ...]]:
        """Return single images."""
        return [(self.images.stack(i, 1),) for i in range(len(self.images) or 1)]

    def calibration(self) -> Sequence[tuple[Array, ...]]:
        """Return the calibration images."""
        return self.calibration_images

    def timing_inputs(self) -> tuple[Array, ...]:
        """Return a batch of images."""
        return (self.images.stack(0, self.batch),)

    def fingerprint(self) -> str:
        """Return a hash of the weights, of the scored data, and of the images' names, sizes and dates."""
        with self.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        scored = "" if self.scorer is None else self.scorer.fingerprint()
        digest.update(f"{self.spec.to_dict()} {self.batch} {scored}".encode())
        for path in (*self.images.paths, *self.calibration_images.paths):
            stat = path.stat()
            digest.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeConfig(SearchConfig):
    """What to optimise, beside how to search.

    Attributes:
        model: the weight file, or a model's name.
        network: the model that the weights must be of; None for any.
        data: a labelled set; its validation part is scored. None: nothing is scored, and there are no int8 rows.
        allow_outside: also read files that the sets name outside of their folders.
        folder: for the report and the artifacts; None for a new one, `runs/optimize/exp…`. A second call with the same
            folder resumes where the first ended.
        options: what the user says about the weights.
        batch: images in one timed request.
        max_drop: how much AP may be lost; None for any.
        calibration: images for the quantisers: a folder, an image, or a labelled set. By default the training part.
        calibration_images: how many of them.
        val: hold out this share of a set that has no parts, as training does; the rest calibrates.
        seed: of that split, the same as in training.
        limit: score only the first images, this many.
        quiet: show no progress bar.
    """

    model: str | Path
    network: str | None = None
    folder: Path | None = None
    data: str | Path | None = None
    allow_outside: bool = False
    options: ModelOptions = field(default_factory=ModelOptions)
    batch: int = 1
    max_drop: float | None = 0.005
    calibration: str | Path | None = None
    calibration_images: int = CALIBRATION_IMAGES
    val: float | None = None
    seed: int = 0
    limit: int | None = None
    quiet: bool = True

    def __post_init__(self) -> None:
        SearchConfig.__post_init__(self)  # `super()` fails in a dataclass with slots before Python 3.14
        if self.folder is not None and self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"{str(self.folder)!r} is not a folder, so results can't go there. Choose another one.")
        for name in ("batch", "calibration_images", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name}={value!r} must be at least 1.")
        if self.allow_outside and self.data is None and self.calibration is None:
            raise UsageError("allow_outside is about the files of a set. Give data or calibration, or leave it out.")
        if self.data is None:
            for name in ("val", "limit"):
                if getattr(self, name) is not None:
                    raise UsageError(f"{name}={getattr(self, name)!r} needs a labelled set. Give data.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeResult:
    """The report and where the files are.

    Attributes:
        report: the rows.
        folder: `report.html`, `report.json`, `artifacts/` and `logs/`.
        best: the artifact of the best row; None if every candidate is over the budget.
    """

    report: Report
    folder: Path
    best: Path | None


def optimize(config: OptimizeConfig) -> OptimizeResult:
    """Try every method on a detector, write the report and the best artifact, and return both.

    Raises:
        UsageError: the request makes no sense, or another search uses the folder.
        CheckpointError: the weights can't be used, or don't know the set's classes.
        DataError: the set can't be read.
        ConversionError: the model itself does not run.
    """
    case, remarks = make_case(config)
    if case.scorer is None:
        config = replace(config, max_drop=None)
    # Made only now: a refused request leaves no empty folder.
    folder = new_run_folder(_RUNS) if config.folder is None else config.folder
    with lock_folder(folder):
        _claim(folder, case)
        with progress_bar(hidden=config.quiet) as progress:
            report = run_search(case, folder, config, progress=progress, remarks=remarks)
        return OptimizeResult(report=report, folder=folder, best=_write_best(case, report, folder))


def _claim(folder: Path, case: DetectorCase) -> None:
    """Record which search the folder belongs to; the same search resumes there, another one is refused.

    Raises:
        UsageError: it holds the report of another search.
    """
    owner, now = folder / "tries" / "search", case.fingerprint()
    if (folder / "report.json").exists() and owner.exists() and owner.read_text(encoding="ascii") != now:
        raise UsageError(
            f"{str(folder)!r} holds the report of a search with another model, batch or other images. "
            "Choose another --out, or remove that folder."
        )
    write_whole(owner, now)


def make_case(config: OptimizeConfig) -> tuple[DetectorCase, tuple[str, ...]]:
    """Return the detector with its images, and what a reader of the report should know about them."""
    from boxwright.tasks.checkpoint import read_spec

    path = find_model(config.model)
    if path.suffix.lower() not in WEIGHTS:
        raise UsageError(
            f"{str(path)!r} can't be converted: that needs PyTorch weights (.pth, .safetensors). "
            "`boxwright benchmark` times converted models."
        )
    if config.options.output is not None:
        raise UsageError(f"--output-form {config.options.output!r} does not apply to weights. Leave it out.")
    spec = read_spec(path, config.options)
    if config.network not in (None, spec.model):
        raise UsageError(
            f"{str(path)!r} holds {spec.model}, but {config.network} was asked for. Give the weights of "
            f"{config.network}, or leave its name out."
        )
    scored, training = _read_parts(config)
    if scored is not None:
        if config.limit is not None:
            scored = scored.select(range(min(config.limit, len(scored))))
        match_classes(spec.names, scored.names)  # refuses other classes before anything is tried
    quantised = any(METHODS[method].precision is Precision.INT8 for method in config.methods)
    paths, origin = _find_calibration(config, scored, training)
    calibration = ImageInputs(paths, spec, most=config.calibration_images)
    images = ImageInputs(paths if scored is None else image_paths(scored), spec, most=_PROBES)
    images.stack(0, 1)  # refuses unreadable images before anything is tried
    remarks = []
    if scored is not None:
        remarks.append(f"AP on {len(scored)} images of {str(config.data)!r}, conf {OFFICIAL.conf:g}")
    if not paths:
        remarks.append(f"no images were given: timed with drawn scenes{', int8 was not possible' * quantised}")
    elif quantised:
        remarks.append(f"quantisers calibrated on {len(calibration)} {origin}")
        if scored is not None and training is None and config.calibration is None:
            _log.warning(
                "%r has no training part, so quantisers are calibrated on images that are scored too. That flatters "
                "int8 a little; give other images with --calibration PATH.",
                str(config.data),
            )
    case = DetectorCase(
        path=path,
        options=config.options,
        spec=spec,
        scorer=None if scored is None else ApScorer(records=scored, spec=spec),
        images=images,
        calibration_images=calibration,
        batch=config.batch,
    )
    return case, tuple(remarks)


def _read_parts(config: OptimizeConfig) -> tuple[Records | None, Records | None]:
    """Return the images to score, and the training images where the set has both parts."""
    if config.data is None:
        return None, None
    layout = find_layout(config.data, allow_outside=config.allow_outside)
    if config.val is not None or len(layout.splits) > 1:
        training, scored = read_splits(
            config.data, val=config.val, seed=config.seed, allow_outside=config.allow_outside
        )
        return scored, training
    return layout.read(None), None


def _find_calibration(
    config: OptimizeConfig, scored: Records | None, training: Records | None
) -> tuple[list[Path], str]:
    """Return the images to calibrate with, and where they come from."""
    if config.calibration is not None:
        where = Path(config.calibration)
        return find_images(where, allow_outside=config.allow_outside), f"images of {str(where)!r}"
    if training is not None:
        return image_paths(training), "training images"
    if scored is not None:
        return image_paths(scored), "of the scored images, because there are no others (give --calibration PATH)"
    return [], ""


def _write_best(case: DetectorCase, report: Report, folder: Path) -> Path | None:
    try:
        best = report.best().method
    except BudgetError:
        return None
    target, draft = folder / "best", folder / ".best"
    shutil.rmtree(draft, ignore_errors=True)  # left by a search that was killed
    try:
        with writing(target):
            if best == ORIGINAL:
                choice = Choice(runtime="eager", mode="plain")
                write_artifact(case.source(), choice, draft, spec=case.spec, golden=case.probes()[0])
            else:
                shutil.copytree(folder / "artifacts" / best, draft)
            if target.exists():
                shutil.rmtree(target)
            draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target
