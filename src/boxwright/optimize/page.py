"""The report as one HTML file without network access: a plot of latency and accuracy, the table, the conditions."""

import math
from collections.abc import Sequence
from html import escape

from boxwright.optimize.candidates import METHODS, ORIGINAL
from boxwright.optimize.report import Report, Row

_WIDTH, _HEIGHT = 860, 430
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 24, 18, 52
_COLOURS = {
    "pytorch": "#5b6b7b",
    "jit": "#b5651d",
    "compile": "#7b3fa0",
    "openvino": "#0b6e99",
    "onnxruntime": "#1b7f4b",
    "ipex": "#b3343a",
}
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2530; --soft: #66727f; --line: #d8dee4; --paper: #fff; --mark: #eef6ee; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e9ee; --soft: #98a4b0; --line: #38424c; --paper: #161b21; --mark: #1d3324; }
}
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1100px; padding: 0 1rem;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.5rem; margin-bottom: .2rem; }
p, li { color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top;
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2), td:last-child, th:last-child { text-align: left; }
td:last-child { color: var(--soft); max-width: 26rem; overflow-wrap: anywhere; }
tr.best td { background: var(--mark); font-weight: 600; }
tr.bad td { color: var(--soft); }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif;
  paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
svg .soft { fill: var(--soft); } svg .grid { stroke: var(--line); } svg .frame { stroke: var(--soft); fill: none; }
svg .budget { stroke: #b3343a; stroke-dasharray: 6 4; }
"""


def make_page(report: Report) -> str:
    """Return the whole page as text."""
    best = report.best_method()
    rows = "\n".join(_table_row(row, report, best) for row in report.rows)
    metric = escape(report.settings.metric or "accuracy")
    heads = ("method", "status", "latency ms", "p95 ms", "speed-up", metric, "drop", "peak MB", "MB", "note")
    head = "".join(f"<th>{h}</th>" for h in heads)
    verdict = (
        f"Best: <b>{escape(best)}</b>" if best is not None else "No candidate stays inside the budget, or none ran."
    )
    conditions = "".join(f"<li>{escape(line)}</li>" for line in report.conditions())
    versions = ", ".join(f"{escape(k)} {escape(v)}" for k, v in report.settings.versions.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Boxwright: inference report</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>Inference report</h1>\n<p>{verdict}</p>\n{make_plot(report)}\n"
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>\n"
        f"<ul>{conditions}<li>{versions}</li></ul>\n</body></html>\n"
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

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="accuracy over latency">']
    for tick in _ticks_x(low_x, high_x):
        parts.append(_line("grid", x(tick), _TOP, x(tick), _HEIGHT - _BOTTOM))
        parts.append(_text("soft", x(tick), _HEIGHT - _BOTTOM + 18, f"{tick:g}", "middle"))
    for tick in _ticks_y(low_y, high_y) if scored else []:
        parts.append(_line("grid", _LEFT, y(tick), _WIDTH - _RIGHT, y(tick)))
        parts.append(_text("soft", _LEFT - 8, y(tick) + 4, f"{tick:.4g}", "end"))
    budget = _budget(report)
    if scored and budget is not None and low_y <= budget <= high_y:
        parts.append(_line("budget", _LEFT, y(budget), _WIDTH - _RIGHT, y(budget)))
        parts.append(_text("soft", _WIDTH - _RIGHT - 6, y(budget) - 5, "budget", "end"))
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    parts.append(f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{width}" height="{height}"/>')
    parts.append(_text("", _LEFT + width / 2, _HEIGHT - 10, "latency in ms (log scale, less is better)", "middle"))
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

    def place(self, text: str, x: float, y: float) -> str:
        """Return a label beside its point, as near to its height as there is room."""
        width = 9 + 6.6 * len(text)
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
        return _text("", x + 9 if right else x - 9, at, text, "start" if right else "end")


def _point(row: Row, at: tuple[float, float], ends: Sequence[float], *, best: bool, labels: _Labels) -> str:
    x, y = at
    colour = _COLOURS.get(METHODS[row.method].accelerator if row.method in METHODS else "", "#444")
    bar = f'<path stroke="{colour}" d="M{x:.1f} {ends[0]:.1f}V{ends[1]:.1f}"/>' if ends else ""
    ring = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="none" stroke="{colour}" stroke-width="2"/>' if best else ""
    fill = colour if row.status == "successful" else "none"
    dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{colour}" stroke-width="2"/>'
    tip = f"{row.method}: {row.latency_ms:.2f} ms" + ("" if row.accuracy is None else f", {row.accuracy:.4f}")
    return f"<g>{bar}{dot}{ring}{labels.place(row.method, x, y)}<title>{escape(tip)}</title></g>"


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(kind: str, x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


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


def _ticks_y(low: float, high: float) -> list[float]:
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _table_row(row: Row, report: Report, best: str | None) -> str:
    base = report.original.latency_ms
    faster = "" if row.latency_ms is None or base is None else f"{base / row.latency_ms:.2f}×"
    cells = row.cells()
    cells = [*cells[:4], faster if row.method != ORIGINAL else "1", *cells[4:], "; ".join(row.remarks())]
    kind = "best" if row.method == best else "" if row.status == "successful" else "bad"
    return f'<tr class="{kind}">' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
