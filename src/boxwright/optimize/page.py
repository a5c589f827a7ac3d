"""The report as one HTML file without network access: a plot of latency and accuracy, the table, the conditions."""

import math
from collections.abc import Sequence
from html import escape

from boxwright.optimize.candidates import METHODS, ORIGINAL
from boxwright.optimize.report import Report, Row
from boxwright.report import page
from boxwright.report.page import Html, element, table
from boxwright.report.plots import line, text, ticks

_WIDTH, _HEIGHT = 860, 430
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 24, 18, 52
_COLOURS = {
    "pytorch": "var(--c5)",
    "jit": "var(--c1)",
    "compile": "var(--c3)",
    "openvino": "var(--c0)",
    "onnxruntime": "var(--c2)",
    "ipex": "var(--c4)",
}


def make_page(report: Report) -> str:
    """Return the whole page as text."""
    best = report.best_method()
    metric = report.settings.metric or "accuracy"
    heads = ("method", "status", "latency ms", "p95 ms", "speed-up", metric, "drop", "peak MB", "MB", "note")
    kinds = ["best" if r.method == best else "" if r.status == "successful" else "bad" for r in report.rows]
    verdict = (
        element("p", "Best: ", element("b", best))
        if best is not None
        else "No candidate stays inside the budget, or none ran."
    )
    conditions = [element("li", said) for said in report.conditions()]
    versions = ", ".join(f"{name} {version}" for name, version in report.settings.versions.items())
    return page.make_page(
        "Inference report",
        verdict,
        Html(make_plot(report)),
        table(heads, [_cells(row, report) for row in report.rows], texts=2, kinds=kinds, note=True),
        element("ul", *conditions, element("li", versions)),
    )


def make_plot(report: Report) -> str:
    """Return an SVG of accuracy over latency, one point per row; "" when no row has a latency.

    Without a metric, all points lie on one line.
    """
    rows = [r for r in report.rows if r.latency_ms is not None]
    if not rows:
        return ""
    times = [r.latency_ms or 0.0 for r in rows]
    low_x, high_x = (min(times) / 1.15, max(times) * 1.6) if max(times) > 0 else (0.1, 1.0)
    scored = [r for r in rows if r.accuracy is not None]
    low_y, high_y = _range_y(scored, report) if scored else (0.0, 1.0)

    def x(value: float) -> float:
        part = (math.log(value) - math.log(low_x)) / (math.log(high_x) - math.log(low_x))
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - low_y) / (high_y - low_y) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<svg class="dots" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="accuracy over latency">']
    for tick in _ticks_x(low_x, high_x):
        parts.append(line("grid", x(tick), _TOP, x(tick), _HEIGHT - _BOTTOM))
        parts.append(text("soft", x(tick), _HEIGHT - _BOTTOM + 18, f"{tick:g}", "middle"))
    for tick in ticks(low_y, high_y) if scored else []:
        parts.append(line("grid", _LEFT, y(tick), _WIDTH - _RIGHT, y(tick)))
        parts.append(text("soft", _LEFT - 8, y(tick) + 4, f"{tick:.4g}", "end"))
    budget = _budget(report)
    if scored and budget is not None and low_y <= budget <= high_y:
        parts.append(line("budget", _LEFT, y(budget), _WIDTH - _RIGHT, y(budget)))
        parts.append(text("soft", _WIDTH - _RIGHT - 6, y(budget) - 5, "budget", "end"))
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    parts.append(f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{width}" height="{height}"/>')
    parts.append(text("", _LEFT + width / 2, _HEIGHT - 10, "latency in ms (log scale, less is better)", "middle"))
    name = escape(report.settings.metric or "no metric")
    turned = f"translate(16 {_TOP + height / 2:.1f}) rotate(-90)"
    parts.append(f'<text transform="{turned}" text-anchor="middle">{name}</text>')
    middle = (low_y + high_y) / 2
    places = {r.method: (x(r.latency_ms or low_x), y(middle if r.accuracy is None else r.accuracy)) for r in rows}
    best, labels = report.best_method(), _Labels(list(places.values()))
    for row in sorted(rows, key=lambda r: r.latency_ms or 0.0):
        ends = [y(value) for value in _interval_values(row, report)]
        parts.append(_point(row, places[row.method], ends, best=row.method == best, labels=labels))
    return "".join([*parts, "</svg>"])


class _Labels:
    """Finds room for labels that would overlap each other or a point."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        # Left, right and height of everything that must stay legible.
        self._taken = [(x - 6, x + 6, y) for x, y in points]

    def place(self, said: str, x: float, y: float) -> str:
        """Return a label beside its point, as near to its height as there is room."""
        width = 9 + 6.6 * len(said)
        right = x + width < _WIDTH - _RIGHT
        first, last = (x + 8, x + width) if right else (x - width, x - 8)
        at = y + 4
        for step in range(2 * len(self._taken) + 1):
            tried = y + 4 + (step + 1) // 2 * (13 if step % 2 else -13)
            free = all(last < a or first > b or abs(tried - 4 - ty) >= 12 for a, b, ty in self._taken)
            if free and _TOP + 12 < tried < _HEIGHT - _BOTTOM - 4:
                at = tried
                break
        self._taken.append((first, last, at - 4))
        return text("", x + 9 if right else x - 9, at, said, "start" if right else "end")


def _point(row: Row, at: tuple[float, float], ends: Sequence[float], *, best: bool, labels: _Labels) -> str:
    x, y = at
    colour = _COLOURS.get(METHODS[row.method].accelerator if row.method in METHODS else "", "var(--ink)")
    bar = f'<path stroke="{colour}" d="M{x:.1f} {ends[0]:.1f}V{ends[1]:.1f}"/>' if ends else ""
    ring = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="none" stroke="{colour}" stroke-width="2"/>' if best else ""
    fill = colour if row.status == "successful" else "none"
    dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{colour}" stroke-width="2"/>'
    tip = f"{row.method}: {row.latency_ms:.2f} ms" + ("" if row.accuracy is None else f", {row.accuracy:.4f}")
    return f"<g>{bar}{dot}{ring}{labels.place(row.method, x, y)}<title>{escape(tip)}</title></g>"


def _sign(report: Report) -> int:
    return 1 if report.settings.direction == "max" else -1


def _budget(report: Report) -> float | None:
    """Return the accuracy that the budget leaves."""
    if report.settings.max_drop is None or report.original.accuracy is None:
        return None
    return report.original.accuracy - _sign(report) * report.settings.max_drop


def _interval_values(row: Row, report: Report) -> list[float]:
    """Return the accuracies at both ends of a row's interval; empty without one."""
    if row.drop_low is None or row.drop_high is None or report.original.accuracy is None:
        return []
    return [report.original.accuracy - _sign(report) * drop for drop in (row.drop_low, row.drop_high)]


def _range_y(rows: Sequence[Row], report: Report) -> tuple[float, float]:
    values = [r.accuracy for r in rows if r.accuracy is not None]
    values += [value for r in rows for value in _interval_values(r, report)]
    low, high = min(values), max(values)
    room = max((high - low) * 0.12, abs(high) * 1e-3, 1e-6)
    return low - room, high + room


def _ticks_x(low: float, high: float) -> list[float]:
    steps = (1, 1.5, 2, 3, 4, 5, 7) if high / low < 10 else (1, 2, 5)
    ticks = [round(m * 10.0**e, 6) for e in range(-4, 7) for m in steps]
    return [t for t in ticks if low <= t <= high]


def _cells(row: Row, report: Report) -> list[str]:
    base = report.original.latency_ms
    faster = "" if row.latency_ms is None or base is None else f"{base / row.latency_ms:.2f}×"
    cells = row.cells()
    return [*cells[:4], faster if row.method != ORIGINAL else "1", *cells[4:], "; ".join(row.remarks())]
