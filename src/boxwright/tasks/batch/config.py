"""The settings and the result of a batch run."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from boxwright.core.errors import UsageError, check_choice
from boxwright.devices.chosen import Chosen
from boxwright.tasks.models import ModelOptions
from boxwright.tasks.predict.predictor import Thresholds

EngineName = Literal["local", "ray", "spark"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """The settings of a batch run.

    Attributes:
        model: a name, a file or an artifact folder of this machine; it is sent to the workers.
        data: a folder of images (with its sub-folders), a parquet file with encoded images, a folder of such files, or
            a URL of any of them. Every worker must be able to read it.
        out: a folder or URL for the results. Every worker must be able to write to it.
        engine: what runs the workers.
        workers: their number; None for as many as the engine has room for.
        threads: computing threads of each worker's model; None for 1, or for what an active Spark session grants.
        address: the Ray cluster.
        master: the Spark master.
        column: the column of a parquet file that holds the images; None for the only one that can.
        part_rows: images in one file of the results.
        batch: images that go through the network at once.
        thresholds: which boxes are kept.
        options: what the model's file does not say.
        start_timeout_s: how long Ray may take to start the first worker.
        trust: run a model with code that another user or machine made (see `Predictor.load`).
        device: where the model runs (see `Predictor.load`); for accelerators, engine `local` only.
    """

    model: str | Path
    data: str | Path
    out: str | Path
    engine: EngineName = "local"
    workers: int | None = None
    threads: int | None = None
    address: str | None = None
    master: str | None = None
    column: str | None = None
    part_rows: int = 256
    batch: int = 1
    thresholds: Thresholds = field(default_factory=Thresholds)
    options: ModelOptions = field(default_factory=ModelOptions)
    start_timeout_s: float = 300.0
    trust: bool = False
    device: str | None = None

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, get_args(EngineName))
        for name in ("workers", "threads", "part_rows", "batch"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UsageError(f"{name}={value!r} is not possible. Use a whole number of at least 1.")
        if self.device is not None and not Chosen.parse(self.device).is_cpu and self.engine != "local":
            raise UsageError(
                f"device={self.device!r} is for engine 'local': {self.engine} hands out cpus only. Use engine='local' "
                "on the machine that has the device."
            )
        for name, engine in (("address", "ray"), ("master", "spark")):
            if getattr(self, name) is not None and self.engine != engine:
                raise UsageError(
                    f"{name}={getattr(self, name)!r} is for engine {engine!r}, and this is {self.engine!r}. "
                    "Leave it out."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The result of a batch run.

    Attributes:
        out: the folder or URL of the results.
        images: rows in the results, unreadable images included.
        errors: rows of this run whose image could not be read.
        parts: files in the results.
        skipped: files that an earlier run had finished.
        processes: number of processes that worked on this run.
        loads: how many times a model was loaded.
        busy_s: seconds that all workers together spent on reading, predicting and writing, without loading.
    """

    out: str
    images: int
    errors: int
    parts: int
    skipped: int
    processes: int
    loads: int
    busy_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        return asdict(self)
