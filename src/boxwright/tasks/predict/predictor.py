"""Predicting: image in, `Detections` out, one image or an endless stream. It needs no torch."""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import CheckpointError, DataError, UsageError, check_choice
from boxwright.core.timing import Stopwatch
from boxwright.core.types import Detections
from boxwright.detector.postprocess import postprocess
from boxwright.devices.chosen import Chosen
from boxwright.runtimes.artifact import Artifact, is_artifact
from boxwright.runtimes.autopilot import Arrangement
from boxwright.runtimes.base import Hint, Session, Tuning
from boxwright.tasks.models import ModelOptions, arrange, find_model, is_converted, open_model, place_model
from boxwright.tasks.predict.inputs import EncodedImage, Failure, Frame, ImageSource, Item, list_sources
from boxwright.tasks.predict.selfcheck import OnMismatch, choose_artifact
from boxwright.vision.letterbox import letterbox, to_input, undo_letterbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Which boxes are kept; `classes` may also be a single name."""

    conf: float = 0.25
    nms: float = 0.45
    class_agnostic: bool = False
    classes: tuple[str, ...] | str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.classes, str):  # otherwise its letters would be the names
            object.__setattr__(self, "classes", (self.classes,))
        for name, value in (("conf", self.conf), ("nms", self.nms)):
            if not 0 <= value <= 1:
                raise UsageError(f"{name}={value!r} must be between 0 and 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A frame and what was found in it."""

    frame: Frame
    detections: Detections


class Predictor:
    """A detector ready for images.

    Example:
        >>> from boxwright import Spec
        >>> class Blind:  # a model that sees nothing; Predictor.load("yolox_nano.onnx") sees more
        ...     spec = Spec(names=("cat",), size_hw=(64, 64), output="scores")
        ...     def __call__(self, images):
        ...         return np.zeros((len(images), self.spec.num_anchors, 6), np.float32)
        ...     def close(self): pass
        >>> with Predictor(Blind()) as predictor:
        ...     [name for box, score, name in predictor(np.zeros((48, 64, 3), np.uint8))]
        []
    """

    def __init__(
        self,
        session: Session,
        thresholds: Thresholds | None = None,
        *,
        scaled_decode: bool = False,
        workers: int = 1,
        arrangement: Arrangement | None = None,
    ) -> None:
        """Make a predictor over a loaded model.

        Args:
            session: the model.
            thresholds: which boxes are kept.
            scaled_decode: decode JPEGs that are at least twice as large as the network's input at a half, a quarter or
                an eighth of their size: several times faster for large pictures. Pixels are averaged instead of picked,
                so scores change a little. Boxes are still in pixels of the full picture.
            workers: number of threads of `stream`, each with its own pictures. The session must allow calls from
                several threads, as those of artifacts and ONNX files do.
            arrangement: how the session uses the machine, if a hint has decided that.

        Raises:
            UsageError: there is no such class, or less than one worker.
        """
        if workers < 1:
            raise UsageError(f"workers={workers!r} must be at least 1.")
        self._session = session
        self._workers = workers
        self.arrangement = arrangement
        self._pools: set[ThreadPoolExecutor] = set()
        self._closed = False
        self._fit_hw = session.spec.size_hw if scaled_decode else None
        self.thresholds = thresholds or Thresholds()
        self.watch = Stopwatch()
        if self.thresholds.classes is not None:  # reject an unknown class now, not at the first image
            Detections.empty(names=session.spec.names, size_hw=(1, 1)).filter(classes=self.thresholds.classes)

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        thresholds: Thresholds | None = None,
        options: ModelOptions | None = None,
        on_mismatch: OnMismatch = "fallback",
        fallback: Sequence[str | Path] = (),
        scaled_decode: bool = False,
        workers: int = 1,
        hint: Hint | None = None,
        trust: bool = False,
        device: str | None = None,
    ) -> "Predictor":
        """Return a predictor for a name, a `.pth`, a safetensors file, an `.onnx` or an artifact folder.

        An artifact is checked when it is first used on a machine: a child process runs its golden input, which must
        give its golden output. If it does not, or the child crashes, the next best artifact is used.

        Args:
            model: what to load.
            thresholds: which boxes are kept.
            options: what the model's file does not say.
            on_mismatch: what to do with an artifact that fails its check: "fallback" (to the next one, with a warning),
                "refuse", or "ignore" for no check at all.
            fallback: artifacts to fall back on, best first; by default the others of the same report.
            scaled_decode: decode large JPEGs smaller, which is faster (see `Predictor`).
            workers: how many pictures `stream` predicts in parallel, each with its share of the physical cores: more
                pictures per second, but a single picture takes longer. For artifacts and ONNX files; it pays with
                OpenVINO and ONNX Runtime, which compute several requests at a time.
            hint: "latency" for the fastest answer to one picture, "throughput" for the most pictures per second by
                `stream`: threads, streams and processes are then chosen from the machine's cores and quota, and
                `predictor.arrangement.explain()` says why. For artifacts and ONNX files. None leaves threads to the
                runtime.
            trust: load a model that runs code (machine code, TorchScript) even if another user or machine made it.
                Models that this user converted on this machine don't need it.
            device: "cpu", a device of the catalogue, one of several by its number ("cuda:1"), or "auto" for an
                accelerator if this model can run on one. None is the device that an artifact was converted for, and the
                CPU for other files. On an accelerator, weights take `workers` and `hint` too: threads decode beside it.

        Raises:
            CheckpointError: there is no such model, its file can't be used, it holds code of another user or machine,
                or no artifact passes its check.
            MissingDependencyError: the device of an artifact is not here, or a package is missing.
            UsageError: an option does not apply to this kind of model, or there are more workers than cores.
        """
        path = find_model(model)
        try:
            place = place_model(path, device)
        except CheckpointError:
            place = Chosen()  # a damaged artifact, which may fall back on another one
        tuning = _check_tuning(path, hint, workers, place)
        found: Path | Artifact = path
        if is_artifact(path):
            found = choose_artifact(path, on_mismatch=on_mismatch, fallback=fallback, trust=trust)
        elif fallback:
            raise UsageError(
                f"fallback={list(map(str, fallback))!r} is for artifact folders; {str(path)!r} is not one."
            )
        arrangement = None
        if hint is not None:
            arrangement = arrange(found, hint, place_model(found, device))
            tuning, workers = arrangement.tuning, arrangement.side_by_side
        session = open_model(found, options, tuning, trust=trust, device=device)
        return cls(session, thresholds, scaled_decode=scaled_decode, workers=workers, arrangement=arrangement)

    @property
    def names(self) -> tuple[str, ...]:
        """The detector's classes."""
        return self._session.spec.names

    @property
    def session(self) -> Session:
        """The model behind the predictor."""
        return self._session

    def __call__(self, source: ImageSource) -> Detections:
        """Return the detections in one image: a path, bytes, an array or a PIL image.

        Raises:
            DataError: the image can't be read.
            UsageError: the source is more than one image; `stream` is for those.
        """
        results = self._predict_all(list_sources(source), 1)
        first = next(results)
        if isinstance(first, Failure):
            raise first.error
        if first.frame.index is not None or next(results, None) is not None:
            raise UsageError(f"{first.frame.source!r} is not one image. Use stream() for folders and videos.")
        return first.detections

    def stream(
        self, sources: ImageSource | Sequence[ImageSource] | Iterator[ImageSource], *, batch: int = 1
    ) -> Iterator[Prediction | Failure]:
        """Yield a prediction for each frame and a failure for each input that can't be read, in order.

        At most `batch` frames for each worker and one more `batch` are held at a time, so memory stays flat on an
        endless video. With several workers, sources are read that far ahead: do not change a file or an array before
        its result is there, and a result comes when the next frames have been requested.

        Args:
            sources: anything that `list_sources` takes, also frames.
            batch: how many images go through the network at once.
        """
        if batch < 1:
            raise UsageError(f"batch={batch!r} must be at least 1.")
        if self._closed:
            raise CheckpointError("This predictor is closed. Load the model again.")
        items = list_sources(sources)
        results = self._predict_all(items, batch) if self._workers == 1 else self._predict_in_threads(items, batch)
        with closing(results):
            try:
                for result in results:
                    yield result
                    if self._closed:  # during the yield
                        return  # type: ignore[unreachable]
            except Exception:
                if not self._closed:  # else the model was closed while it computed
                    raise

    def _predict_all(self, items: Iterable[Item], batch: int) -> Generator[Prediction | Failure, None, None]:
        """Yield the result of each item, in order."""
        waiting: list[Frame] = []
        for item in items:
            if isinstance(item, EncodedImage):
                with self.watch.span("decode"):
                    frame = item.read(self._fit_hw)
            else:
                frame = item
            if isinstance(frame, Failure):
                yield from self._predict_frames(waiting)
                waiting = []
                yield frame
                continue
            waiting.append(frame)
            if len(waiting) == batch:
                yield from self._predict_frames(waiting)
                waiting = []
        yield from self._predict_frames(waiting)

    def _predict_in_threads(self, items: Iterator[Item], batch: int) -> Generator[Prediction | Failure, None, None]:
        """Yield the result of each item, in order; each worker has a batch, and one waits."""
        at_work: deque[Future[list[Prediction | Failure]]] = deque()
        groups = _read_groups(items, batch)
        pool = ThreadPoolExecutor(self._workers, thread_name_prefix="boxwright-predict")
        self._pools.add(pool)
        try:
            while True:
                try:
                    group = next(groups, None)
                except Exception:  # the source failed: first yield what was read before
                    while at_work:
                        yield from at_work.popleft().result()
                    raise
                if group is not None:
                    at_work.append(pool.submit(lambda group: list(self._predict_all(group, batch)), group))
                elif not at_work:
                    return
                while at_work and (group is None or len(at_work) > self._workers or at_work[0].done()):
                    yield from at_work.popleft().result()
        finally:  # also when the caller stops early
            pool.shutdown(cancel_futures=True)
            self._pools.discard(pool)

    def predict_batch(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """Return the detections in each of several (H, W, 3) BGR images, which may differ in size."""
        if not images:
            return []
        spec, keep = self._session.spec, self.thresholds
        with self.watch.span("letterbox"):
            batch = np.empty((len(images), *spec.size_hw, 3), np.uint8)
            ratios = [letterbox(image, spec.size_hw, out)[1] for image, out in zip(images, batch, strict=True)]
            inputs: Any
            if spec.preprocessing == "bgr255" and getattr(self._session, "takes_bytes", False):
                inputs = batch.transpose(0, 3, 1, 2)  # the same values, in a quarter of the bytes to copy
            else:
                inputs = to_input(batch, spec.preprocessing)
        with self.watch.span("network"):
            outputs = self._session(inputs)
        found = []
        with self.watch.span("boxes"):
            for image, ratio, output in zip(images, ratios, outputs, strict=True):
                boxes, scores, class_ids = postprocess(
                    output,
                    size_hw=spec.size_hw,
                    strides=spec.strides,
                    form=spec.output,
                    conf=keep.conf,
                    nms=keep.nms,
                    class_agnostic=keep.class_agnostic,
                )
                size_hw = (image.shape[0], image.shape[1])
                detections = Detections(
                    boxes_xyxy=undo_letterbox(boxes, ratio, size_hw),
                    scores=scores,
                    class_ids=class_ids,
                    names=spec.names,
                    size_hw=size_hw,
                )
                found.append(detections if keep.classes is None else detections.filter(classes=keep.classes))
        return found

    def _predict_frames(self, frames: list[Frame]) -> Iterator[Prediction | Failure]:
        try:
            found = self.predict_batch([f.image for f in frames])
        except DataError as error:
            if len(frames) == 1:
                yield Failure(source=frames[0].source, error=error)
            else:  # a bad frame must not spoil the others
                for frame in frames:
                    yield from self._predict_frames([frame])
            return
        for frame, detections in zip(frames, found, strict=True):
            yield Prediction(frame=frame, detections=_enlarge(detections, frame.full_size_hw))

    def close(self) -> None:
        """Release the model and end any running stream."""
        self._closed = True
        for pool in list(self._pools):
            pool.shutdown(cancel_futures=True)
        self._session.close()

    def __enter__(self) -> "Predictor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_groups(items: Iterator[Item], batch: int) -> Iterator[list[Item]]:
    """Yield the items in groups, the last ones also if the source then fails."""
    group: list[Item] = []
    try:
        for item in items:
            group.append(item)
            if len(group) == batch:
                yield group
                group = []
    except Exception:
        if group:
            yield group
        raise
    if group:
        yield group


def _check_tuning(path: Path, hint: Hint | None, workers: int, place: Chosen) -> Tuning | None:
    """Reject a hint or workers that do not apply; return the tuning for several workers."""
    if hint is not None:
        check_choice("hint", hint, get_args(Hint))
        if workers != 1:
            raise UsageError(
                f"hint={hint!r} chooses the workers itself, but workers={workers!r} is given. Leave one of them out."
            )
    elif workers <= 1:
        return None
    if place.is_cpu and not is_converted(path):
        option = f"workers={workers!r}" if hint is None else f"hint={hint!r}"
        raise UsageError(
            f"{option} does not apply to {path.name}, which runs in PyTorch. Leave it out, or convert the "
            "model first: boxwright optimize or boxwright export."
        )
    cores = read_cpu().usable_cores
    if workers > cores:
        raise UsageError(f"workers={workers!r} is more than the {cores} cores that may be used. Ask for fewer.")
    return Tuning(hint="throughput", threads=cores // workers)


def _enlarge(detections: Detections, size_hw: tuple[int, int] | None) -> Detections:
    """Return detections in a smaller decoding as detections in the picture of its full size."""
    if size_hw is None:
        return detections
    y, x = (full / small for full, small in zip(size_hw, detections.size_hw, strict=True))
    boxes = detections.boxes_xyxy * np.array([x, y, x, y], np.float32)
    return replace(detections, boxes_xyxy=boxes, size_hw=size_hw)


def predict(
    model: str | Path, source: ImageSource, *, trust: bool = False, device: str | None = None, **thresholds: Any
) -> Detections:
    """Return a model's detections in one image; for more images, keep a `Predictor`.

    For example `predict("yolox_nano.onnx", "street.jpg", conf=0.3)`. For `trust` and `device` see
    `Predictor.load`.
    """
    with Predictor.load(model, thresholds=Thresholds(**thresholds), trust=trust, device=device) as predictor:
        return predictor(source)
