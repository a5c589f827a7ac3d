"""Where a run's numbers go: `metrics.jsonl` and `results.csv`, TensorBoard, MLflow, Weights & Biases, your callbacks.

Lightning's loggers are not used. They import all of Lightning (3 s, 190 MB) into runs that need none of it; its
TensorBoard logger writes in a thread, which prints a traceback on a full disk; its MLflow logger ignores a run of the
user's own and MLflow's settings in code; its W&B logger never ends a run.
"""

import csv
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from boxwright.core.errors import MissingDependencyError, UsageError, check_choice
from boxwright.core.files import write_whole
from boxwright.core.hooks import check_hooks
from boxwright.core.packages import missing_packages

Values = Mapping[str, float]


class Callback:
    """Receives a run's progress in its first process; subclass it and override what you need."""

    def on_start(self, settings: Mapping[str, Any]) -> None:
        """Receive the run's settings."""

    def on_step(self, step: int, values: Values) -> None:
        """Receive losses, learning rate and speed, every `print_interval` steps."""

    def on_evaluation(self, step: int, values: Values) -> None:
        """Receive AP, AP50, AP75 and AR100."""

    def on_end(self) -> None:
        """Clean up; the run is over, or has failed."""


class JsonLines(Callback):
    """`metrics.jsonl`: everything, one line each. A resumed run appends after the step it resumes at."""

    def __init__(self, path: Path, *, resume_at: int | None) -> None:
        if resume_at is not None:
            _drop_lines(path, lambda line: json.loads(line)["step"] > resume_at)
        self._file = path.open("w" if resume_at is None else "a", encoding="utf-8")

    def on_step(self, step: int, values: Values) -> None:
        """Write a line."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()

    on_evaluation = on_step

    def on_end(self) -> None:
        """Close the file."""
        self._file.close()


class ResultsCsv(Callback):
    """`results.csv`: a line for each evaluation; a resumed run appends as in `JsonLines`."""

    def __init__(self, path: Path, *, resume_at: int | None) -> None:
        if resume_at is not None:
            _drop_lines(path, lambda line: not line.startswith("step,") and int(line.partition(",")[0]) > resume_at)
        self._needs_heading = resume_at is None or not path.exists() or not path.stat().st_size
        self._file = path.open("w" if resume_at is None else "a", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")

    def on_evaluation(self, step: int, values: Values) -> None:
        """Write a line, after a heading in a new file."""
        if self._needs_heading:
            self._writer.writerow(["step", *values])
            self._needs_heading = False
        self._writer.writerow([step, *(f"{v:.6g}" for v in values.values())])
        self._file.flush()

    def on_end(self) -> None:
        """Close the file."""
        self._file.close()


def _drop_lines(path: Path, unwanted: Callable[[str], bool]) -> None:
    """Remove lines that a killed run wrote after its last checkpoint: those steps are repeated."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        with suppress(ValueError, KeyError):  # a line that was cut off
            if line.endswith("\n") and not unwanted(line):
                kept.append(line)
    write_whole(path, "".join(kept))


@dataclass(frozen=True)
class _Tracker(Callback):
    """A logger of another package: what logs settings, what logs metrics, and what ends it."""

    log_settings: Callable[[dict[str, str]], object]
    log_metrics: Callable[[dict[str, float], int], object]
    end: Callable[[], object]

    def on_start(self, settings: Mapping[str, Any]) -> None:
        self.log_settings({key: str(value) for key, value in settings.items()})

    def on_step(self, step: int, values: Values) -> None:
        self.log_metrics({f"train/{key}": value for key, value in values.items()}, step)

    def on_evaluation(self, step: int, values: Values) -> None:
        self.log_metrics({f"val/{key}": value for key, value in values.items()}, step)

    def on_end(self) -> None:
        self.end()


def _open_tensorboard(folder: Path, *, resume: bool) -> Callback:  # noqa: ARG001 - every start has its own file
    """Write scalars to the folder `tensorboard` of the run; a resumed run adds a file.

    Without torch's SummaryWriter: its thread prints a traceback when the disk is full.
    """
    summary: Any = import_module("torch.utils.tensorboard.summary")
    event: Any = import_module("tensorboard.compat.proto.event_pb2").Event
    place = folder / "tensorboard"
    place.mkdir(exist_ok=True)
    # TensorBoard recognises its files by this prefix; the rest keeps two starts apart.
    file = (place / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}").open("xb")
    records: Any = import_module("tensorboard.summary.writer.record_writer").RecordWriter(file)

    def write(**content: Any) -> None:
        records.write(event(wall_time=time.time(), **content).SerializeToString())

    def log_settings(settings: dict[str, str]) -> None:
        write(summary=summary.text("settings", "\n".join(f"    {k}: {v}" for k, v in settings.items())))

    def log_metrics(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            write(step=step, summary=summary.scalar(name, value))
        records.flush()

    write(file_version="brain.Event:2")
    return _Tracker(log_settings, log_metrics, records.close)


def _open_mlflow(folder: Path, *, resume: bool) -> Callback:
    """Log to the user's active MLflow run, or to one where MLflow's own settings (MLFLOW_TRACKING_URI, …) say.

    `mlflow_run_id` in the run folder lets a resumed training find its run.
    """
    mlflow: Any = import_module("mlflow")
    known = _read_id(folder / "mlflow_run_id") if resume else None
    is_own = mlflow.active_run() is None
    if is_own:
        run = mlflow.start_run(run_id=known) if known else mlflow.start_run(run_name=folder.name)
        (folder / "mlflow_run_id").write_text(run.info.run_id, encoding="utf-8")
    return _Tracker(
        # A resumed run has its settings, which MLflow does not let change.
        mlflow.log_params if known is None else lambda _settings: None,
        lambda values, step: mlflow.log_metrics(values, step=step),
        mlflow.end_run if is_own else lambda: None,
    )


def _open_wandb(folder: Path, *, resume: bool) -> Callback:
    """Log to the user's active W&B run, or to a new one; offline unless WANDB_MODE or its settings say otherwise.

    `wandb_run_id` in the run folder lets a resumed training find its run.
    """
    wandb: Any = import_module("wandb")
    run, is_own = wandb.run, wandb.run is None
    if is_own:
        settings = wandb.setup().settings
        # W&B's default is to send everything to a server; that must be the user's decision.
        mode = settings.mode if "mode" in settings.model_fields_set else "offline"
        known = _read_id(folder / "wandb_run_id") if resume else None
        again = {"id": known, "resume": "allow"} if known else {}
        run = wandb.init(dir=str(folder), name=folder.name, project="boxwright", mode=mode, **again)
        (folder / "wandb_run_id").write_text(run.id, encoding="utf-8")
    return _Tracker(
        lambda settings: run.config.update(settings, allow_val_change=True),
        lambda values, step: run.log(values, step=step),
        run.finish if is_own else lambda: None,
    )


def _read_id(path: Path) -> str | None:
    """Return the id that an earlier start of the run stored; None if it logged nothing."""
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


_LOGGERS: dict[str, Callable[..., Callback]] = {
    "tensorboard": _open_tensorboard, "mlflow": _open_mlflow, "wandb": _open_wandb,
}  # fmt: skip


def check_loggers(names: Sequence[str]) -> None:
    """Reject unknown loggers (UsageError) and those that are not installed (MissingDependencyError)."""
    for name in names:
        check_choice("logger", name, _LOGGERS)
        if missing_packages([name]):
            raise MissingDependencyError(
                f"Logger {name!r} needs {name}, which is not installed. Run: pip install {name}"
            )


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Reject callbacks of the user that lack a hook, or have one that is never called (UsageError)."""
    hooks = [name for name in vars(Callback) if name.startswith("on_")]
    for number, one in enumerate(callbacks):
        if isinstance(one, type) or not all(callable(getattr(one, hook, None)) for hook in hooks):
            kind = one.__name__ if isinstance(one, type) else type(one).__name__
            raise UsageError(
                f"callbacks[{number}] ({kind}) is not an object with all of {', '.join(hooks)}. Inherit from "
                "boxwright.tasks.train.loggers.Callback, which has them."
            )
        check_hooks(one, f"callbacks[{number}]", hooks)


def make_callbacks(folder: Path, loggers: Sequence[str], *, resume_at: int | None) -> list[Callback]:
    """Return the files of a run's folder and the named loggers; TensorBoard also unnamed, if it is installed.

    `resume_at` is the step that a resumed run continues from.
    """
    check_loggers(loggers)
    wanted = list(dict.fromkeys(loggers))
    if "tensorboard" not in wanted and not missing_packages(["tensorboard"]):
        wanted.append("tensorboard")
    return [
        JsonLines(folder / "metrics.jsonl", resume_at=resume_at),
        ResultsCsv(folder / "results.csv", resume_at=resume_at),
        *(_LOGGERS[name](folder, resume=resume_at is not None) for name in wanted),
    ]
