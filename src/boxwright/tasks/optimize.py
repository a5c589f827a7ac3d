"""The fastest way to run a detector on this machine: every method tried, COCO AP beside each, the best one written."""

import hashlib
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import BudgetError, DataError, UsageError
from boxwright.core.log import get_logger
from boxwright.core.signature import Array
from boxwright.core.spec import Spec
from boxwright.core.types import Precision
from boxwright.data.fingerprint import fingerprint
from boxwright.data.formats import find_layout, read_records
from boxwright.data.records import Records
from boxwright.data.split import read_splits
from boxwright.evaluation.resample import match_detections, resample_ap
from boxwright.optimize.accuracy import Direction, Score
from boxwright.optimize.candidates import METHODS, ORIGINAL, SearchMode, choose_methods
from boxwright.optimize.progress import progress_bar
from boxwright.optimize.report import Report
from boxwright.optimize.store import hold_folder
from boxwright.optimize.study import StudyConfig, run_study
from boxwright.runtimes.artifact import write_artifact
from boxwright.runtimes.base import Choice, Graph
from boxwright.runtimes.detector import DetectorSession
from boxwright.tasks.evaluate import OFFICIAL, collect, match_classes
from boxwright.tasks.models import ModelOptions, find_model
from boxwright.tasks.predict.predictor import Predictor
from boxwright.tasks.run_folders import new_run_folder
from boxwright.vision.decode import list_images, read_image
from boxwright.vision.letterbox import letterbox, to_input

_log = get_logger(__name__)
_WEIGHTS = (".safetensors", ".pth", ".pt", ".ckpt", ".tar")
_RUNS = Path("runs/optimize")
_SCORE_BATCH = 8
_PROBES = 4


class ImageInputs(Sequence[tuple[Array, ...]]):
    """Images as inputs of a network, each read when it is asked for."""

    def __init__(self, paths: Sequence[Path], spec: Spec) -> None:
        self._paths, self._spec = tuple(paths), spec

    def __len__(self) -> int:
        return len(self._paths)

    @overload
    def __getitem__(self, index: int) -> tuple[Array, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> "ImageInputs": ...
    def __getitem__(self, index: int | slice) -> "tuple[Array, ...] | ImageInputs":
        if isinstance(index, slice):
            return ImageInputs(self._paths[index], self._spec)
        return (prepare([read_image(self._paths[index])], self._spec),)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files."""
        return self._paths


def prepare(images: Sequence[NDArray[np.uint8]], spec: Spec) -> NDArray[np.float32]:
    """Return (H, W, 3) images as one input of the network."""
    boxed = np.stack([letterbox(image, spec.size_hw)[0] for image in images])
    return np.ascontiguousarray(to_input(boxed, spec.preprocessing))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApScorer:
    """COCO AP on a labelled set, with the fate of every detection, so that draws of the images can be scored too."""

    records: Records
    spec: Spec

    @property
    def name(self) -> str:
        """What the score is called."""
        return "AP"

    @property
    def direction(self) -> Direction:
        """More is better."""
        return "max"

    def score(self, graph: Graph) -> Score:
        """Return the AP of a loaded detector."""
        predictor = Predictor(DetectorSession(graph, self.spec), OFFICIAL)
        evaluator, failures = collect(predictor, self.records, batch=_SCORE_BATCH)
        if not len(evaluator):
            raise DataError(f"None of the {len(self.records)} images could be read. First: {failures[0].error}")
        return Score(value=float(evaluator.evaluate().AP), arrays=match_detections(evaluator))

    def count(self, score: Score) -> int:
        """Return how many images were scored."""
        return int(score.arrays["images"])

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
        import torch

        from boxwright.runtimes.source import Source
        from boxwright.tasks.checkpoint import read_checkpoint

        model, _ = read_checkpoint(self.path, self.options)
        return Source.of(model, [torch.from_numpy(self.timing_inputs()[0])])

    def probes(self) -> Sequence[tuple[Array, ...]]:
        """Return single images."""
        return [self.images[i] for i in range(min(_PROBES, len(self.images)))] or [(_pattern(self.spec),)]

    def calibration(self) -> Sequence[tuple[Array, ...]]:
        """Return the calibration images."""
        return self.calibration_images

    def timing_inputs(self) -> tuple[Array, ...]:
        """Return a batch of different images, as many as there are."""
        probes = self.probes()
        return (np.concatenate([probes[i % len(probes)][0] for i in range(self.batch)]),)

    def fingerprint(self) -> str:
        """Return a hash of the weights, of what is scored, and of the images' names, sizes and dates."""
        with self.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        scored = "" if self.scorer is None else self.scorer.fingerprint()
        digest.update(f"{self.spec.to_dict()} {self.batch} {scored}".encode())
        for path in (*self.images.paths, *self.calibration_images.paths):
            stat = path.stat()
            digest.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeConfig:
    """What to optimise, and how.

    Attributes:
        model: the weight file, or a model's name.
        network: the model that the weights must be of; None for any.
        data: a labelled set; its validation part is scored. None: nothing is scored, and int8 can't be had.
        folder: where report and artifacts go; None for a new one, `runs/optimize/exp…`. A second call with the same
            folder goes on where the first ended.
        batch: images in one timed request.
        max_drop: how much AP may be lost; None for any.
        calibration: images for the quantisers: a folder, an image, or a labelled set. By default the training part.
        calibration_images: how many of them.
        val: hold out this part of a set that has no parts, as training does; the rest calibrates.
        seed: of that split, the one that training was given.
        limit: score only so many images.
        includes: try only these methods (see `choose_methods` for these five).
        excludes: leave these methods out.
        search_mode: "default", or "all" for variants that are seldom the best too.
        accelerator: try only methods of these accelerators.
        precision: try only methods of these precisions.
        thread_num: computing threads; None for one a physical core.
        latency_sample_num: timed runs of each model, at most.
        confidence: how sure each end of the drop's interval is.
        timeout_s: how long one conversion may take.
        memory_mb: how much memory one child may use, in MiB.
        search_tries: how often layers are put back into float for one row.
        early_stop: models this many times slower than the original are not timed to the end; None to time all.
        quiet: show no progress bar.
    """

    model: str | Path
    network: str | None = None
    folder: Path | None = None
    data: str | Path | None = None
    options: ModelOptions = field(default_factory=ModelOptions)
    batch: int = 1
    max_drop: float | None = 0.005
    calibration: str | Path | None = None
    calibration_images: int = 128
    val: float | None = None
    seed: int = 0
    limit: int | None = None
    includes: tuple[str, ...] | None = None
    excludes: tuple[str, ...] | None = None
    search_mode: SearchMode = "default"
    accelerator: tuple[str, ...] | None = None
    precision: tuple[str, ...] | None = None
    thread_num: int | None = None
    latency_sample_num: int = 100
    confidence: float = 0.95
    timeout_s: float = 600.0
    memory_mb: int | None = None
    search_tries: int = 5
    early_stop: float | None = 3.0
    quiet: bool = True

    @property
    def methods(self) -> tuple[str, ...]:
        """What is tried, the original first."""
        return choose_methods(
            includes=self.includes,
            excludes=self.excludes,
            search_mode=self.search_mode,
            accelerator=self.accelerator,
            precision=self.precision,
        )

    def __post_init__(self) -> None:
        _ = self.methods  # names that don't exist are refused now, not after the data was read
        if self.folder is not None and self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"{str(self.folder)!r} is no folder, so results can't go there. Choose another one.")
        for name in ("batch", "calibration_images", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name}={value!r} must be at least 1.")
        if self.data is None:
            for name in ("val", "limit"):
                if getattr(self, name) is not None:
                    raise UsageError(f"{name}={getattr(self, name)!r} needs a labelled set. Give data.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeResult:
    """What was found and where it is.

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
        UsageError: the request makes no sense, or another search works in the folder.
        CheckpointError: the weights can't be used, or don't know the set's classes.
        DataError: the set can't be read.
        ConversionError: the model itself does not run.
    """
    case, remarks = make_case(config)
    study = StudyConfig(
        methods=config.methods,
        thread_num=config.thread_num,
        max_drop=None if case.scorer is None else config.max_drop,
        confidence=config.confidence,
        latency_sample_num=config.latency_sample_num,
        timeout_s=config.timeout_s,
        memory_mb=config.memory_mb,
        search_tries=config.search_tries,
        early_stop=config.early_stop,
        remarks=remarks,
    )
    # Made now: what was refused so far leaves no empty folder behind.
    folder = new_run_folder(_RUNS) if config.folder is None else config.folder
    with hold_folder(folder):
        with nullcontext(None) if config.quiet else progress_bar() as progress:
            report = run_study(case, folder, study, progress)
        return OptimizeResult(report=report, folder=folder, best=_write_best(case, report, folder))


def make_case(config: OptimizeConfig) -> tuple[DetectorCase, tuple[str, ...]]:
    """Return the detector with its images, and what a reader of the report should know about them."""
    from boxwright.tasks.checkpoint import read_checkpoint

    path = find_model(config.model)
    if path.suffix.lower() not in _WEIGHTS:
        raise UsageError(
            f"{str(path)!r} can't be converted: that needs weights of PyTorch (.pth, .safetensors). "
            "`boxwright benchmark` times what is converted already."
        )
    if config.options.output is not None:
        raise UsageError(f"--output-form {config.options.output!r} does not apply to weights. Leave it out.")
    _, spec = read_checkpoint(path, config.options)
    if config.network not in (None, spec.model):
        raise UsageError(
            f"{str(path)!r} holds {spec.model}, but {config.network} was asked for. Give the weights of "
            f"{config.network}, or leave its name out."
        )
    scored, training = _read_parts(config)
    scorer, images = None, ImageInputs([], spec)
    if scored is not None:
        if config.limit is not None:
            scored = scored.select(range(min(config.limit, len(scored))))
        match_classes(spec.names, scored.names)  # other classes are refused before anything is tried
        scorer = ApScorer(records=scored, spec=spec)
        images = ImageInputs(_readable(_paths(scored), _PROBES), spec)
    quantised = any(METHODS[method].precision is Precision.INT8 for method in config.methods)
    calibration, told = _find_calibration(config, scored, training)
    remarks = (told,) if told and quantised else ()
    if quantised and scored is not None and training is None and config.calibration is None:
        _log.warning(
            "%r has no training part, so quantisers are calibrated on images that are scored too. That flatters int8 a "
            "little; give other images with --calibration PATH.",
            str(config.data),
        )
    if not len(images):
        images = ImageInputs(calibration[:_PROBES], spec)
        if not calibration:
            remarks = (f"no images were given: timed with a drawn pattern{', int8 was not possible' * quantised}",)
    case = DetectorCase(
        path=path,
        options=config.options,
        spec=spec,
        scorer=scorer,
        images=images,
        calibration_images=ImageInputs(calibration, spec),
        batch=config.batch,
    )
    if scored is not None:
        remarks = (f"AP on {len(scored)} images of {str(config.data)!r}, conf {OFFICIAL.conf:g}", *remarks)
    return case, remarks


def _read_parts(config: OptimizeConfig) -> tuple[Records | None, Records | None]:
    """Return the images to score, and the training images where the set tells them apart."""
    if config.data is None:
        return None, None
    layout = find_layout(config.data)
    if config.val is not None or len(layout.splits) > 1:
        training, scored = read_splits(config.data, val=config.val, seed=config.seed)
        return scored, training
    return layout.read(None), None


def _find_calibration(
    config: OptimizeConfig, scored: Records | None, training: Records | None
) -> tuple[list[Path], str]:
    """Return the images for the quantisers, and a sentence about them; "" if there are none."""
    if config.calibration is not None:
        where = Path(config.calibration)
        if where.is_file() and where.suffix.lower() in (".json", ".yaml", ".yml", ".txt"):
            paths = _paths(read_records(where))
        else:
            paths = [where] if where.is_file() else list_images(where, recursive=True)
        if not paths:
            raise DataError(f"There are no images in {str(where)!r} to calibrate with.")
        told = f"images of {str(where)!r}"
    elif training is not None:
        paths, told = _paths(training), "training images"
    elif scored is not None:
        paths, told = _paths(scored), "of the scored images, for want of others (give --calibration PATH)"
    else:
        return [], ""
    chosen = _readable(paths, config.calibration_images)
    return chosen, f"quantisers calibrated on {len(chosen)} {told}"


def _paths(records: Records) -> list[Path]:
    return [records.path(i) for i in range(len(records))]


def _readable(paths: Sequence[Path], count: int) -> list[Path]:
    """Return so many paths, spread evenly, of images that can be read."""
    step = max(1, len(paths) // count)
    found: list[Path] = []
    for path in (*paths[::step], *(p for i, p in enumerate(paths) if i % step)):
        if len(found) == count:
            break
        try:
            read_image(path)
        except DataError as error:
            _log.warning("Left out: %s", error)
            continue
        found.append(path)
    return found


def _pattern(spec: Spec) -> NDArray[np.float32]:
    """Return a drawn picture: what a network is timed with when there is no image at all."""
    height, width = spec.size_hw
    y, x = np.mgrid[:height, :width]
    image = np.stack((x * 255 // width, y * 255 // height, (x // 32 + y // 32) % 2 * 200), axis=2).astype(np.uint8)
    return prepare([image], spec)


def _write_best(case: DetectorCase, report: Report, folder: Path) -> Path | None:
    try:
        best = report.best().method
    except BudgetError:
        return None
    target = folder / "best"
    if target.exists():
        shutil.rmtree(target)
    if best == ORIGINAL:
        write_artifact(
            case.source(), Choice(runtime="eager", mode="plain"), target, spec=case.spec, golden=case.probes()[0]
        )
    else:
        shutil.copytree(folder / "artifacts" / best, target)
    return target
