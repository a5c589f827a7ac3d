"""The results of a search: rows, the best of them, and both as a table, JSON and a page."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from boxwright.core.errors import BudgetError, CheckpointError
from boxwright.core.files import write_whole
from boxwright.core.text import text_table
from boxwright.core.types import Precision
from boxwright.optimize.candidates import METHODS, ORIGINAL, matches
from boxwright.optimize.trial import Status
from boxwright.runtimes.calibrate import describe_int8

PUBLIC = ("method", "status", "latency_ms", "p95_ms", "accuracy", "drop", "peak_mb", "size_mb", "note")
"""The fields of a row in JSON, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One method.

    Attributes:
        latency_ms: the median run; None if it was not timed.
        accuracy: the score of the converted artifact; None if it was not measured.
        drop: how much of the original's score was lost; positive is worse.
        drop_low: the loss is above this, with the report's confidence; None without an interval.
        drop_high: the loss is below this; a budget is compared with this.
        peak_mb: peak memory of a process with this model alone, in MiB.
        size_mb: of the artifact's files, or of the original's parameters, in MiB.
        note: the reason for the status, or what was done.
        runs: how many were timed.
        distance: how far its outputs are from the original's.
        kept: layers that were kept in float for accuracy.
        recipe: how it was converted, in the runtime's own words.
        log: the file of its process's output; "" if there is none.
    """

    method: str
    status: Status
    latency_ms: float | None = None
    p95_ms: float | None = None
    accuracy: float | None = None
    drop: float | None = None
    drop_low: float | None = None
    drop_high: float | None = None
    peak_mb: float | None = None
    size_mb: float | None = None
    note: str = ""
    runs: int = 0
    distance: float | None = None
    kept: tuple[str, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    log: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the nine fields that `--json` prints."""
        return {name: getattr(self, name) for name in PUBLIC}

    def cells(self) -> list[str]:
        """Return the row's columns of a table."""
        return [
            self.method,
            self.status,
            _number(self.latency_ms, 2),
            _number(self.p95_ms, 2),
            _number(self.accuracy, 4),
            _number(self.drop, 4) + _interval(self),
            _number(self.peak_mb, 0),
            _number(self.size_mb, 1),
        ]

    def remarks(self) -> list[str]:
        """Return its note, its log if it failed, and how it was quantised if it is an int8 row."""
        failed = self.status not in ("successful", "early stopped", "over budget")
        method = METHODS.get(self.method)
        quantised = method is not None and method.precision is Precision.INT8 and self.recipe
        log = f"log: {self.log}" if self.log and failed else ""
        return [text for text in (self.note, log, describe_int8(self.recipe) if quantised else "") if text]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The conditions under which the rows were measured.

    Attributes:
        machine: processor, cores, system and Python.
        batch: rows of one timed request; None where the inputs have no common first axis.
        metric: the metric's name; "" without one.
        versions: of the packages that were used.
        remarks: sentences for the reader, such as which images the quantisers were calibrated on.
        device: what the original ran on.
    """

    machine: str
    threads: int
    batch: int | None
    metric: str = ""
    direction: str = "max"
    max_drop: float | None = None
    confidence: float = 0.95
    versions: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    device: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The rows of a search, and how they were measured."""

    rows: tuple[Row, ...]
    settings: Settings

    def row(self, method: str) -> Row:
        """Return the row of a method that was tried."""
        return {row.method: row for row in self.rows}[method]

    @property
    def original(self) -> Row:
        """The row of the model as it was given."""
        return self.row(ORIGINAL)

    def best(
        self,
        *,
        accelerator: str | Sequence[str | None] | None = None,
        precision: str | Sequence[str] | None = None,
        max_drop: float | None = None,
    ) -> Row:
        """Return the fastest row of these accelerators and precisions that is successful and inside the budget.

        `max_drop` is a budget besides the report's own, against the original.

        Raises:
            BudgetError: all candidates are over the budget, or all failed or are slow.
        """
        asked = [r for r in self.rows if matches(r.method, accelerator=accelerator, precision=precision)]
        inside = [r for r in asked if r.status == "successful" and r.latency_ms is not None and _within(r, max_drop)]
        over = [r for r in asked if _is_over(r, max_drop)]
        done = [r for r in asked if r.method != ORIGINAL and r.status in ("successful", "early stopped")]
        others = [r for r in done if _within(r, max_drop)]
        if (over and not others) or not inside:
            budget = self.settings.max_drop if max_drop is None else max_drop
            if not over or others:
                raise BudgetError(
                    "No candidate was successful: all failed, or were much slower than the original. "
                    "Look at the notes of the rows."
                )
            nearest = min(over, key=_bound)
            raise BudgetError(
                f"No candidate stays within max_drop={budget!r}. Nearest: {nearest.method}, drop {nearest.drop:.4f}"
                f"{_interval(nearest)}, {_number(nearest.latency_ms, 2)} ms. Allow more, or give more images to score."
            )
        return min(inside, key=lambda r: r.latency_ms or 0.0)

    def best_method(self) -> str | None:
        """Return the name of the best row; None if there is none."""
        try:
            return self.best().method
        except BudgetError:
            return None

    def to_dict(self) -> dict[str, Any]:
        """Return {"rows": [...], "best": name or None} in plain JSON values."""
        return {"rows": [_plain(row.to_dict()) for row in self.rows], "best": self.best_method()}

    def table(self) -> str:
        """Return the rows and their conditions as text."""
        head = ["method", "status", "latency ms", "p95 ms", self.settings.metric or "accuracy", "drop", "peak MB", "MB"]
        lines = [head, *(row.cells() for row in self.rows)]
        notes = [f"  {row.method}: {remark}" for row in self.rows for remark in row.remarks()]
        noted = ["", "notes:", *notes] if notes else []
        return "\n".join([text_table(lines, left=2), *noted, "", *self.conditions()])

    def conditions(self) -> list[str]:
        """Return sentences on how the numbers were measured."""
        s = self.settings
        batch = "" if s.batch is None else f"batch {s.batch}, "
        lines = [
            f"{batch}{s.threads} thread{'s' if s.threads != 1 else ''}, {s.machine}",
            "latency: median of interleaved, warmed-up runs, each model in its own process",
        ]
        if s.device != "cpu":
            lines.insert(1, f"on {s.device}; latency includes the copies of inputs and outputs")
        if s.metric:
            budget = "" if s.max_drop is None else f"; allowed: {s.max_drop:g}, compared with the upper end"
            lines.append(
                f"drop: loss of {s.metric} against the original, in brackets its interval with {s.confidence:.0%} "
                f"confidence at each end (paired bootstrap){budget}"
            )
        if any(row.kept for row in self.rows):
            lines.append("layers were put back into float by the score on the same data, which flatters a little")
        return [*lines, *s.remarks]

    def save(self, folder: Path) -> None:
        """Write `report.json` and `report.html`."""
        from boxwright.optimize.page import make_page

        values = {"best": self.best_method(), "settings": asdict(self.settings), "rows": [asdict(r) for r in self.rows]}
        text = json.dumps(_plain(values), indent=1, ensure_ascii=False, allow_nan=False)
        write_whole(folder / "report.json", text + "\n")
        write_whole(folder / "report.html", make_page(self))

    @classmethod
    def read(cls, file: Path) -> "Report":
        """Return the report in a `report.json`.

        Raises:
            CheckpointError: it can't be read.
        """
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            settings = values["settings"] | {"remarks": tuple(values["settings"]["remarks"])}
            rows = tuple(Row(**row | {"kept": tuple(row["kept"])}) for row in values["rows"])
            return cls(rows=rows, settings=Settings(**settings))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"The report {str(file)!r} can't be read: {error!r}") from error


def _plain(value: Any) -> Any:
    """Return a value with null for numbers that JSON lacks."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _within(row: Row, max_drop: float | None) -> bool:
    return max_drop is None or (row.drop is not None and _bound(row) <= max_drop)


def _is_over(row: Row, max_drop: float | None) -> bool:
    """Return whether a candidate was measured and lost too much; a slow or crashed one is not over a budget."""
    if row.method == ORIGINAL or row.drop is None:
        return False
    return row.status == "over budget" or (row.status in ("successful", "early stopped") and not _within(row, max_drop))


def _bound(row: Row) -> float:
    if row.drop_high is not None:
        return row.drop_high
    return float("inf") if row.drop is None else row.drop


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _interval(row: Row) -> str:
    return "" if row.drop_high is None or row.drop_low is None else f" [{row.drop_low:.4f}, {row.drop_high:.4f}]"
