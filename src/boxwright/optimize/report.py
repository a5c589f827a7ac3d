"""What a search found: rows, and the best of them, as a table, as JSON and as a page."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from boxwright.core.errors import BudgetError, CheckpointError
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
        method: its name.
        status: how it went.
        latency_ms: the median run; None if it was not timed.
        p95_ms: 95 of 100 runs took no longer.
        accuracy: the score of the converted artifact; None if there is no metric or it did not come so far.
        drop: how much of the original's score was lost; positive is worse.
        drop_low: the loss is above this, as sure as the report says; None without an interval.
        drop_high: the loss is below this: what a budget is held against.
        peak_mb: the most memory that a process with this model alone had in use, in MiB.
        size_mb: of the artifact's files, or of the original's parameters, in MiB.
        note: the reason for the status, or what was done.
        runs: how many runs the median is of.
        distance: how far its outputs are from the original's.
        kept: layers that were kept in float for the sake of accuracy.
        recipe: how it was converted, in the runtime's own words.
        log: the file with what its process printed; "" if there is none.
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

    def how(self) -> str:
        """Return in one line how an int8 row was quantised; "" for others."""
        method = METHODS.get(self.method)
        if method is None or method.precision is not Precision.INT8 or not self.recipe:
            return ""
        return describe_int8(self.recipe)

    def remarks(self) -> list[str]:
        """Return what a reader should know of this row: its note, where its log is if it went wrong, and its recipe."""
        went_wrong = self.status not in ("successful", "early stopped", "over budget")
        log = f"log: {self.log}" if self.log and went_wrong else ""
        return [text for text in (self.note, log, self.how()) if text]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Under which conditions the rows were measured.

    Attributes:
        machine: processor, cores, system and Python.
        threads: computing threads of each model.
        batch: rows of one timed request; None where the inputs have no common first axis.
        metric: what the accuracy is; "" without one.
        direction: whether more or less of it is better.
        max_drop: the budget; None without one.
        confidence: of the interval's ends, each for itself.
        versions: packages that were used.
        remarks: what a reader should know, such as which images the quantisers were calibrated on.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The rows of a search, and how they were measured."""

    rows: tuple[Row, ...]
    settings: Settings

    def row(self, method: str) -> Row:
        """Return the row of a method.

        Raises:
            KeyError: it was not tried.
        """
        return {row.method: row for row in self.rows}[method]

    @property
    def original(self) -> Row:
        """The row of the model as it was given."""
        return self.row(ORIGINAL)

    def best(
        self,
        *,
        accelerator: str | Sequence[str] | None = None,
        precision: str | Sequence[str] | None = None,
        max_drop: float | None = None,
    ) -> Row:
        """Return the fastest row that is successful and inside the budget.

        Args:
            accelerator: only rows of these accelerators.
            precision: only rows of these precisions.
            max_drop: a budget on top of the report's own, against the original.

        Raises:
            BudgetError: rows that could have been chosen are over the budget, and none is inside it; or all rows that
                were asked for failed or are slow.
        """
        asked = [r for r in self.rows if matches(r.method, accelerator=accelerator, precision=precision)]
        inside = [r for r in asked if r.status == "successful" and r.latency_ms is not None and _within(r, max_drop)]
        over = [r for r in asked if _is_over(r, max_drop)]
        others = [
            r
            for r in asked
            if r.method != ORIGINAL and r.status in ("successful", "early stopped") and _within(r, max_drop)
        ]
        if (over and not others) or not inside:
            budget = self.settings.max_drop if max_drop is None else max_drop
            if not over or others:
                raise BudgetError(
                    "No candidate was successful: all failed, or were much slower than the original. "
                    "Look at the notes of the rows."
                )
            nearest = min(over, key=lambda r: _bound(r))
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
        """Return the rows as text, and under which conditions they were measured."""
        head = ["method", "status", "latency ms", "p95 ms", self.settings.metric or "accuracy", "drop", "peak MB", "MB"]
        lines = [
            [
                row.method,
                row.status,
                _number(row.latency_ms, 2),
                _number(row.p95_ms, 2),
                _number(row.accuracy, 4),
                _number(row.drop, 4) + _interval(row),
                _number(row.peak_mb, 0),
                _number(row.size_mb, 1),
            ]
            for row in self.rows
        ]
        widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
        text = [_align(head, widths), "  ".join("-" * w for w in widths), *(_align(line, widths) for line in lines)]
        notes = [f"  {row.method}: {remark}" for row in self.rows for remark in row.remarks()]
        return "\n".join([*text, *(["", "notes:", *notes] if notes else []), "", *self.conditions()])

    def conditions(self) -> list[str]:
        """Return in words how the numbers were measured."""
        s = self.settings
        batch = "" if s.batch is None else f"batch {s.batch}, "
        lines = [
            f"{batch}{s.threads} thread{'s' if s.threads != 1 else ''}, {s.machine}",
            "latency: median of interleaved, warmed-up runs, each model in a process of its own",
        ]
        if s.metric:
            budget = "" if s.max_drop is None else f"; allowed: {s.max_drop:g}, held against the upper end"
            lines.append(
                f"drop: loss of {s.metric} against the original, in brackets where it lies with {s.confidence:.0%} "
                f"confidence at each end (paired bootstrap){budget}"
            )
        if any(row.kept for row in self.rows):
            lines.append("layers were put back into float by the score on these same data, which flatters a little")
        return [*lines, *s.remarks]

    def save(self, folder: Path) -> None:
        """Write `report.json` and `report.html`."""
        from boxwright.optimize.page import make_page

        folder.mkdir(parents=True, exist_ok=True)
        values = {"best": self.best_method(), "settings": asdict(self.settings), "rows": [asdict(r) for r in self.rows]}
        text = json.dumps(_plain(values), indent=1, ensure_ascii=False, allow_nan=False)
        (folder / "report.json").write_text(text + "\n", encoding="utf-8")
        (folder / "report.html").write_text(make_page(self), encoding="utf-8")

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
    """Return a value with null for numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _within(row: Row, max_drop: float | None) -> bool:
    return max_drop is None or (row.drop is not None and _bound(row) <= max_drop)


def _is_over(row: Row, max_drop: float | None) -> bool:
    """Return whether a candidate was measured and lost too much; one that is slow or crashed is not over a budget."""
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


def _align(cells: Sequence[str], widths: Sequence[int]) -> str:
    left = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
    return "  ".join(left).rstrip()
