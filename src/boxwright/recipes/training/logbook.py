"""What a run writes into its folder: `metrics.jsonl` and `results.csv`; and what a callback is."""

import csv
import json
from collections.abc import Mapping
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
