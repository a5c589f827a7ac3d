"""What a run writes down: `metrics.jsonl`, `results.csv`, TensorBoard and the like, curves."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from boxwright.core.errors import MissingDependencyError, UsageError, suggest

Values = Mapping[str, float]


class Callback(Protocol):
    """Something that hears of a run's progress, in the first process. Write your own with these four methods."""

    def on_start(self, settings: Mapping[str, Any]) -> None:
        """Hear the run's settings."""
        ...

    def on_step(self, step: int, values: Values) -> None:
        """Hear losses, learning rate and speed, every `print_interval` steps."""
        ...

    def on_evaluation(self, step: int, values: Values) -> None:
        """Hear AP and its relatives."""
        ...

    def on_end(self) -> None:
        """Hear that the run is over."""
        ...


class JsonLines:
    """`metrics.jsonl`: everything, a line each; a resumed run goes on in the same file."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._file = path.open("a" if resume else "w", encoding="utf-8")

    def on_start(self, settings: Mapping[str, Any]) -> None:
        """Write nothing: the settings have a file of their own."""

    def on_step(self, step: int, values: Values) -> None:
        """Write a line."""
        self._write({"step": step, **values})

    def on_evaluation(self, step: int, values: Values) -> None:
        """Write a line."""
        self._write({"step": step, **values})

    def on_end(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, values: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()


class ResultsCsv:
    """`results.csv`: a line for each evaluation."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._new = not (resume and path.exists() and path.stat().st_size)
        self._file = path.open("a" if resume else "w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")

    def on_start(self, settings: Mapping[str, Any]) -> None:
        """Write nothing."""

    def on_step(self, step: int, values: Values) -> None:
        """Write nothing."""

    def on_evaluation(self, step: int, values: Values) -> None:
        """Write a line, after a heading in a new file."""
        if self._new:
            self._writer.writerow(["step", *values])
            self._new = False
        self._writer.writerow([step, *(f"{v:.6g}" for v in values.values())])
        self._file.flush()

    def on_end(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Scalars for TensorBoard, in the run folder."""

    def __init__(self, folder: Path) -> None:
        self._writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(str(folder / "tensorboard"))

    def on_start(self, settings: Mapping[str, Any]) -> None:
        """Write the settings as text."""
        self._writer.add_text("settings", "\n".join(f"    {k}: {v}" for k, v in settings.items()))

    def on_step(self, step: int, values: Values) -> None:
        """Write scalars."""
        for name, value in values.items():
            self._writer.add_scalar(f"train/{name}", value, step)

    def on_evaluation(self, step: int, values: Values) -> None:
        """Write scalars."""
        for name, value in values.items():
            self._writer.add_scalar(f"val/{name}", value, step)

    def on_end(self) -> None:
        """Close the files."""
        self._writer.close()


class Mlflow:
    """A run in MLflow's active experiment."""

    def __init__(self, folder: Path) -> None:
        self._mlflow: Any = import_module("mlflow")
        self._run = self._mlflow.start_run(run_name=folder.name)

    def on_start(self, settings: Mapping[str, Any]) -> None:
        """Log the settings."""
        self._mlflow.log_params({k: str(v) for k, v in settings.items()})

    def on_step(self, step: int, values: Values) -> None:
        """Log metrics."""
        self._mlflow.log_metrics(dict(values), step=step)

    def on_evaluation(self, step: int, values: Values) -> None:
        """Log metrics."""
        self._mlflow.log_metrics({f"val_{k}": v for k, v in values.items()}, step=step)

    def on_end(self) -> None:
        """End the run."""
        self._mlflow.end_run()


class Wandb:
    """A run in Weights & Biases; offline unless its own settings say otherwise."""

    def __init__(self, folder: Path) -> None:
        self._run: Any = import_module("wandb").init(dir=str(folder), name=folder.name, project="boxwright")

    def on_start(self, settings: Mapping[str, Any]) -> None:
        """Log the settings."""
        self._run.config.update({k: str(v) for k, v in settings.items()})

    def on_step(self, step: int, values: Values) -> None:
        """Log metrics."""
        self._run.log({f"train/{k}": v for k, v in values.items()}, step=step)

    def on_evaluation(self, step: int, values: Values) -> None:
        """Log metrics."""
        self._run.log({f"val/{k}": v for k, v in values.items()}, step=step)

    def on_end(self) -> None:
        """End the run."""
        self._run.finish()


_LOGGERS: dict[str, Callable[[Path], Callback]] = {"tensorboard": TensorBoard, "mlflow": Mlflow, "wandb": Wandb}


def make_callbacks(folder: Path, loggers: Sequence[str], *, resume: bool) -> list[Callback]:
    """Return the files of the run folder and the loggers asked for; TensorBoard also unasked, where it is installed.

    Raises:
        UsageError: there is no such logger.
        MissingDependencyError: its package is not installed.
    """
    for name in loggers:
        if name not in _LOGGERS:
            raise UsageError(f"Unknown logger {name!r}.{suggest(name, _LOGGERS)} Choose from: {', '.join(_LOGGERS)}.")
        if find_spec(name) is None:
            raise MissingDependencyError(
                f"Logger {name!r} needs {name}, which is not installed. Run: pip install {name}"
            )
    callbacks: list[Callback] = [
        JsonLines(folder / "metrics.jsonl", resume=resume),
        ResultsCsv(folder / "results.csv", resume=resume),
    ]
    wanted = list(loggers)
    if "tensorboard" not in wanted and find_spec("tensorboard") is not None:
        wanted.append("tensorboard")
    return [*callbacks, *(_LOGGERS[name](folder) for name in wanted)]
