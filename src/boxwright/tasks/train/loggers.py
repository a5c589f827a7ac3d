"""Loggers that others make, as callbacks of a run: TensorBoard, MLflow, Weights & Biases. Imported when chosen."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from boxwright.core.errors import MissingDependencyError, UsageError, suggest
from boxwright.tasks.train.logbook import Callback, JsonLines, ResultsCsv, Values


class TensorBoard:
    """Scalars for TensorBoard, in the folder `tensorboard` of the run; a resumed run adds a file of its own.

    Written here and now: torch's SummaryWriter has a thread that, on a full disk, dies with a traceback of its own.
    """

    def __init__(self, folder: Path, *, resume: bool) -> None:  # noqa: ARG002 - every start has its own file
        self._summary: Any = import_module("torch.utils.tensorboard.summary")
        self._event: Any = import_module("tensorboard.compat.proto.event_pb2").Event
        place = folder / "tensorboard"
        place.mkdir(exist_ok=True)
        # TensorBoard knows its files by this start; the rest keeps two starts apart.
        file = (place / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}").open("xb")
        self._records: Any = import_module("tensorboard.summary.writer.record_writer").RecordWriter(file)
        self._write(file_version="brain.Event:2")

    def on_start(self, settings: Mapping[str, Any]) -> None:
        """Write the settings as text."""
        text = "\n".join(f"    {k}: {v}" for k, v in settings.items())
        self._write(summary=self._summary.text("settings", text))

    def on_step(self, step: int, values: Values) -> None:
        """Write scalars."""
        self._write_scalars("train", step, values)

    def on_evaluation(self, step: int, values: Values) -> None:
        """Write scalars."""
        self._write_scalars("val", step, values)

    def on_end(self) -> None:
        """Close the file."""
        self._records.close()

    def _write_scalars(self, group: str, step: int, values: Values) -> None:
        for name, value in values.items():
            self._write(step=step, summary=self._summary.scalar(f"{group}/{name}", value))
        self._records.flush()

    def _write(self, **content: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())


class Mlflow:
    """A run in MLflow, where its own settings (MLFLOW_TRACKING_URI, …) say; inside a run of the user's, that one.

    `mlflow_run_id` in the run folder is how a resumed training finds its run again.
    """

    def __init__(self, folder: Path, *, resume: bool) -> None:
        self._mlflow: Any = import_module("mlflow")
        known = _read_id(folder / "mlflow_run_id") if resume else None
        self._goes_on = known is not None
        self._own = self._mlflow.active_run() is None
        if self._own:
            run = self._mlflow.start_run(run_id=known) if known else self._mlflow.start_run(run_name=folder.name)
            (folder / "mlflow_run_id").write_text(run.info.run_id, encoding="utf-8")

    def on_start(self, settings: Mapping[str, Any]) -> None:
        """Log the settings; a run that goes on has them already, and MLflow lets nobody change them."""
        if not self._goes_on:
            self._mlflow.log_params({k: str(v) for k, v in settings.items()})

    def on_step(self, step: int, values: Values) -> None:
        """Log metrics."""
        self._mlflow.log_metrics({f"train/{k}": v for k, v in values.items()}, step=step)

    def on_evaluation(self, step: int, values: Values) -> None:
        """Log metrics."""
        self._mlflow.log_metrics({f"val/{k}": v for k, v in values.items()}, step=step)

    def on_end(self) -> None:
        """End the run, if it is ours."""
        if self._own:
            self._mlflow.end_run()


class Wandb:
    """A run in Weights & Biases, inside the run folder; offline unless WANDB_MODE or its settings say otherwise.

    Inside a run of the user's own, that one is used. `wandb_run_id` in the run folder is how a resumed training finds
    its run again.
    """

    def __init__(self, folder: Path, *, resume: bool) -> None:
        wandb: Any = import_module("wandb")
        self._own = wandb.run is None
        if not self._own:
            self._run: Any = wandb.run
            return
        settings = wandb.setup().settings
        # Its own default is to send everything to a server; that must be somebody's decision.
        mode = settings.mode if "mode" in settings.model_fields_set else "offline"
        known = _read_id(folder / "wandb_run_id") if resume else None
        again = {"id": known, "resume": "allow"} if known else {}
        self._run = wandb.init(dir=str(folder), name=folder.name, project="boxwright", mode=mode, **again)
        (folder / "wandb_run_id").write_text(self._run.id, encoding="utf-8")

    def on_start(self, settings: Mapping[str, Any]) -> None:
        """Log the settings."""
        self._run.config.update({k: str(v) for k, v in settings.items()}, allow_val_change=True)

    def on_step(self, step: int, values: Values) -> None:
        """Log metrics."""
        self._run.log({f"train/{k}": v for k, v in values.items()}, step=step)

    def on_evaluation(self, step: int, values: Values) -> None:
        """Log metrics."""
        self._run.log({f"val/{k}": v for k, v in values.items()}, step=step)

    def on_end(self) -> None:
        """End the run, if it is ours."""
        if self._own:
            self._run.finish()


_LOGGERS: dict[str, Callable[..., Callback]] = {"tensorboard": TensorBoard, "mlflow": Mlflow, "wandb": Wandb}


def check_loggers(names: Sequence[str]) -> None:
    """Refuse loggers that are not there.

    Raises:
        UsageError: there is no such logger.
        MissingDependencyError: its package is not installed.
    """
    for name in names:
        if name not in _LOGGERS:
            raise UsageError(f"Unknown logger {name!r}.{suggest(name, _LOGGERS)} Choose from: {', '.join(_LOGGERS)}.")
        if find_spec(name) is None:
            raise MissingDependencyError(
                f"Logger {name!r} needs {name}, which is not installed. Run: pip install {name}"
            )


def make_callbacks(folder: Path, loggers: Sequence[str], *, resume_at: int | None) -> list[Callback]:
    """Return the files of the run folder and the loggers asked for; TensorBoard also unasked, where it is installed.

    Args:
        folder: the run's.
        loggers: their names.
        resume_at: the step after which the run goes on; None for a new one.

    Raises:
        UsageError: there is no such logger.
        MissingDependencyError: its package is not installed.
    """
    check_loggers(loggers)
    wanted = list(dict.fromkeys(loggers))
    if "tensorboard" not in wanted and find_spec("tensorboard") is not None:
        wanted.append("tensorboard")
    return [
        JsonLines(folder / "metrics.jsonl", resume_at=resume_at),
        ResultsCsv(folder / "results.csv", resume_at=resume_at),
        *(_LOGGERS[name](folder, resume=resume_at is not None) for name in wanted),
    ]


def _read_id(path: Path) -> str | None:
    """Return what an earlier start of the run wrote down; None where it logged nothing."""
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
