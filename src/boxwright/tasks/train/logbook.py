"""What a run writes into its folder: `metrics.jsonl` and `results.csv`; and what a callback is."""

import csv
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

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
    """`metrics.jsonl`: everything, a line each. A resumed run goes on in the file, after the step it resumes at."""

    def __init__(self, path: Path, *, resume_at: int | None) -> None:
        if resume_at is not None:
            _keep_lines(path, lambda line: json.loads(line)["step"] <= resume_at)
        self._file = path.open("w" if resume_at is None else "a", encoding="utf-8")

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
    """`results.csv`: a line for each evaluation; a resumed run goes on as in `JsonLines`."""

    def __init__(self, path: Path, *, resume_at: int | None) -> None:
        if resume_at is not None:
            _keep_lines(path, lambda line: line.startswith("step,") or int(line.partition(",")[0]) <= resume_at)
        self._new = resume_at is None or not path.exists() or not path.stat().st_size
        self._file = path.open("w" if resume_at is None else "a", encoding="utf-8", newline="")
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


def _keep_lines(path: Path, wanted: Callable[[str], bool]) -> None:
    """Take away lines that a killed run wrote after its last checkpoint: those steps come again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        with suppress(ValueError, KeyError):  # a line that was cut off
            if line.endswith("\n") and wanted(line):
                kept.append(line)
    new = path.with_name(f"{path.name}.new")
    new.write_text("".join(kept), encoding="utf-8", newline="")
    new.replace(path)
