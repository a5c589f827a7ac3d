"""A worker of a batch run: one process that loads the model once and turns parts into parquet files."""

import hashlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from boxwright.core.errors import BoxwrightError
from boxwright.data.threads import hold_opencv_threads, release_opencv_threads
from boxwright.runtimes.artifact import DESCRIPTION, read_artifact
from boxwright.runtimes.base import Tuning
from boxwright.runtimes.trust import check_files, describe_code
from boxwright.tasks.batch.config import BatchConfig
from boxwright.tasks.batch.inputs import ImagePlace, Part, read_part
from boxwright.tasks.batch.places import write_whole
from boxwright.tasks.models import ModelOptions, find_model, open_model
from boxwright.tasks.predict.inputs import Failure
from boxwright.tasks.predict.predictor import Prediction, Predictor, Thresholds
from boxwright.tasks.predict.selfcheck import choose_artifact

_FAILURES = 8
SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("boxes_xyxy", pa.list_(pa.list_(pa.float32()))),
        ("scores", pa.list_(pa.float32())),
        ("class_ids", pa.list_(pa.int32())),
        ("names", pa.list_(pa.string())),
        ("error", pa.string()),
    ]
)
"""One row per image. An image that could not be read has an `error` and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What every worker needs besides the model's files; `model` is their digest."""

    config: BatchConfig
    images: ImagePlace
    out: str
    model: str
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """A part whose file is written, unless `failure` says why not."""

    part: int
    rows: int = 0
    errors: int = 0
    busy_s: float = 0.0
    process: str = ""
    loaded: bool = False
    failure: str = ""


def is_hopeless(results: Sequence[PartResult]) -> bool:
    """Return whether the last few parts have all failed, so that the others would fail too."""
    return len(results) >= _FAILURES and all(one.failure for one in results[-_FAILURES:])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The files of one model.

    Attributes:
        name: of the file or folder.
        files: path below the folder (or the file's name) and content.
    """

    name: str
    files: tuple[tuple[str, bytes], ...] = field(repr=False)

    @classmethod
    def read(cls, model: str | Path) -> "ModelFiles":
        """Return the files of a model.

        Raises:
            CheckpointError: there is no such model.
        """
        path = find_model(model)
        if path.is_dir():
            found = [DESCRIPTION, *read_artifact(path).files]
            return cls(name=path.resolve().name, files=tuple((name, (path / name).read_bytes()) for name in found))
        beside = [path, path.with_name(f"{path.name}.data")]  # where ONNX keeps the weights of large models
        return cls(name=path.name, files=tuple((p.name, p.read_bytes()) for p in beside if p.is_file()))

    @property
    def digest(self) -> str:
        """A fingerprint of the content."""
        total = hashlib.sha256()
        for name, data in self.files:
            total.update(f"{name}\0{len(data)}\0".encode())
            total.update(data)
        return total.hexdigest()

    @property
    def takes_threads(self) -> bool:
        """Whether the model's runtime has a setting for the number of threads."""
        return self.is_artifact or self.name.lower().endswith(".onnx")

    @property
    def is_artifact(self) -> bool:
        """Whether it is an artifact folder, not a file."""
        return any(name == DESCRIPTION for name, _ in self.files)

    def check_trust(self) -> None:
        """Refuse files with code of another user or machine. Workers don't check again: they got the files from here.

        Raises:
            CheckpointError: there is such a file.
        """
        code = {name: hashlib.sha256(data).hexdigest() for name, data in self.files if describe_code(name)}
        check_files(Path(self.name if self.is_artifact else ""), code)

    def open(
        self, options: ModelOptions, thresholds: Thresholds, threads: int | None, device: str | None = None
    ) -> Predictor:
        """Return a predictor of the model, on a device.

        An artifact must pass its check on this machine: a worker that fell back on another one would not give the same
        results as the others.

        Raises:
            CheckpointError: the files can't be used here.
            UsageError: an option does not apply to the model.
        """
        # The folder can go once the model is loaded: files that are mapped into memory stay there.
        with TemporaryDirectory(prefix="boxwright-model-") as folder:
            path = Path(folder) / self.name
            root = path if self.is_artifact else path.parent
            for name, data in self.files:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(data)
            model = choose_artifact(path, on_mismatch="refuse", trust=True) if self.is_artifact else path
            tuning = Tuning(threads=threads) if self.takes_threads else None
            return Predictor(open_model(model, options, tuning, trust=True, device=device), thresholds)


class PartWorker:
    """Turns parts into files; the model, given directly or by a function, is loaded for the first of them and kept."""

    def __init__(self, settings: WorkerSettings, model: ModelFiles | Callable[[], ModelFiles]) -> None:
        self._settings, self._model = settings, model
        self._predictor: Predictor | None = None

    def ready(self) -> None:
        """Do nothing; an answer confirms that the process has started."""

    def run(self, part: Part) -> PartResult:
        """Predict a part and write its file; errors are returned, not raised."""
        settings, config = self._settings, self._settings.config
        process = f"{socket.gethostname()}:{os.getpid()}"
        loaded = self._predictor is None
        try:
            if self._predictor is None:
                model = self._model if isinstance(self._model, ModelFiles) else self._model()
                self._predictor = model.open(config.options, config.thresholds, settings.threads, config.device)
                hold_opencv_threads()
            start_s = time.perf_counter()
            table = to_table(self._predictor.stream(read_part(settings.images, part), batch=config.batch))
            file = BytesIO()
            pq.write_table(table, file)
            write_whole(settings.out, part.name, file)
        except (BoxwrightError, OSError) as error:
            # If it were raised, the engine would retry it and wrap it into its own long trace.
            failure = f"{type(error).__name__}: {error}"
            return PartResult(part=part.number, process=process, loaded=loaded, failure=failure)
        return PartResult(
            part=part.number,
            rows=len(table),
            errors=len(table) - table["error"].null_count,
            busy_s=time.perf_counter() - start_s,
            process=process,
            loaded=loaded,
        )

    def close(self) -> None:
        """Release the model."""
        if self._predictor is not None:
            self._predictor.close()
            self._predictor = None
            release_opencv_threads()


def to_table(items: Iterable[Prediction | Failure]) -> Any:
    """Return predictions and failures as rows of `SCHEMA`, in their order."""
    rows: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, Failure):
            rows.append({"path": item.source, "error": str(item.error)})
            continue
        found = item.detections
        rows.append(
            {
                "path": item.frame.source,
                "width": found.size_hw[1],
                "height": found.size_hw[0],
                "boxes_xyxy": found.boxes_xyxy.tolist(),
                "scores": found.scores.tolist(),
                "class_ids": found.class_ids.tolist(),
                "names": found.labels,
            }
        )
    return pa.Table.from_pylist(rows, schema=SCHEMA)


_kept: dict[WorkerSettings, PartWorker] = {}  # at most one, for engines that reuse their processes


def run_part(settings: WorkerSettings, model: ModelFiles | Callable[[], ModelFiles], part: Part) -> PartResult:
    """Run a part with this process's worker, which is kept for the next part with the same settings."""
    if settings not in _kept:
        while _kept:
            _kept.popitem()[1].close()
        _kept[settings] = PartWorker(settings, model)
    return _kept[settings].run(part)
