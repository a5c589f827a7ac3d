"""The far end of a batch run: one process that loads the model once and turns parts into files."""

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from boxwright.core.errors import BoxwrightError
from boxwright.data import opencv_threads
from boxwright.tasks.batch.inputs import Part, Source, read_part
from boxwright.tasks.batch.parcel import Parcel
from boxwright.tasks.batch.places import write_whole
from boxwright.tasks.models import ModelOptions
from boxwright.tasks.predict.inputs import Failure
from boxwright.tasks.predict.predictor import Prediction, Predictor, Thresholds

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
"""One row an image. What could not be read has an `error` and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What every worker must know; the model travels beside it."""

    source: Source
    out: str
    batch: int
    thresholds: Thresholds
    options: ModelOptions
    model: str
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a part: its file is written, unless `failure` says why not."""

    part: int
    rows: int = 0
    errors: int = 0
    busy_s: float = 0.0
    process: str = ""
    loaded: bool = False
    failure: str = ""


def is_hopeless(outcomes: Sequence[Outcome]) -> bool:
    """Whether nothing goes any more: the last few parts have all failed, and those to come would too."""
    return len(outcomes) >= _FAILURES and all(one.failure for one in outcomes[-_FAILURES:])


class PartWorker:
    """Turns parts into files; the model is loaded for the first of them and kept."""

    def __init__(self, work: Work, parcel: "Parcel | Callable[[], Parcel]") -> None:
        """Keep what is needed; nothing is loaded yet.

        Args:
            work: what to do.
            parcel: the model, or what gives it when it is needed.
        """
        self._work, self._parcel = work, parcel
        self._predictor: Predictor | None = None

    def ready(self) -> None:
        """Return: there is a process that answers."""

    def run(self, part: Part) -> Outcome:
        """Predict a part, write its file, and tell how that went; a request that can't be met is told, not raised."""
        here = f"{socket.gethostname()}:{os.getpid()}"
        loaded = self._predictor is None
        try:
            if self._predictor is None:
                parcel = self._parcel if isinstance(self._parcel, Parcel) else self._parcel()
                self._predictor = parcel.open(self._work.options, self._work.thresholds, self._work.threads)
                opencv_threads.hold()
            start_s = time.perf_counter()
            found = self._predictor.stream(read_part(self._work.source, part), batch=self._work.batch)
            table = to_table(found)
            file = BytesIO()
            pq.write_table(table, file)
            write_whole(self._work.out, part.name, file)
        except (BoxwrightError, OSError) as error:
            # The engine would try it again and again, and wrap it into pages of its own words.
            told = f"{type(error).__name__}: {error}"
            return Outcome(part=part.number, process=here, loaded=loaded, failure=told)
        return Outcome(
            part=part.number,
            rows=len(table),
            errors=len(table) - table["error"].null_count,
            busy_s=time.perf_counter() - start_s,
            process=here,
            loaded=loaded,
        )

    def close(self) -> None:
        """Give back the model."""
        if self._predictor is not None:
            self._predictor.close()
            self._predictor = None
            opencv_threads.release()


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


_kept: dict[Work, PartWorker] = {}  # at most one: an engine that reuses its processes finds the model loaded


def run_part(work: Work, parcel: "Parcel | Callable[[], Parcel]", part: Part) -> Outcome:
    """Run a part with this process's worker, which is kept for the next part of the same work."""
    if work not in _kept:
        while _kept:
            _kept.popitem()[1].close()
        _kept[work] = PartWorker(work, parcel)
    return _kept[work].run(part)
