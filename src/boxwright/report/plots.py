"""Plots as SVG in the colours of the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from boxwright.report.page import Html, element, join

COLOURS = 6
"""The page has colours `--c0` to `--c5` for lines."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 42
_LETTER = 6.6  # width of a letter, about


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line of a plot; a point that is None or not finite is left out, and cuts the line."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    mark: tuple[float, float] | None = None
    dots: bool = False


def line_plot(
    series: Sequence[Series],
    *,
    x_label: str = "",
    y_label: str = "",
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    size: tuple[int, int] = (520, 300),
) -> Html:
    """Return lines over a common axis, with a legend if there are several."""
    width, height = size
    found = [(x, y) for s in series for x, y in zip(s.x, s.y, strict=True) if y is not None and math.isfinite(y)]
    low_x, high_x = x_range or _range([x for x, _ in found])
    low_y, high_y = y_range or _range([y for _, y in found])
    scale_x, scale_y = (width - _LEFT - _RIGHT) / (high_x - low_x), (height - _TOP - _BOTTOM) / (high_y - low_y)

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + (x - low_x) * scale_x, height - _BOTTOM - (y - low_y) * scale_y

    parts: list[str] = []
    for tick in ticks(low_x, high_x):
        x, _ = place(tick, low_y)
        parts += [line("grid", x, _TOP, x, height - _BOTTOM), text("soft", x, height - _BOTTOM + 16, f"{tick:g}")]
    for tick in ticks(low_y, high_y):
        _, y = place(low_x, tick)
        parts += [line("grid", _LEFT, y, width - _RIGHT, y), text("soft", _LEFT - 6, y + 4, f"{tick:.4g}", "end")]
    parts.append(text("soft", (_LEFT + width - _RIGHT) / 2, height - 8, x_label))
    turned = f"translate(11 {(_TOP + height - _BOTTOM) / 2:.1f}) rotate(-90)"
    parts.append(element("text", y_label, class_="soft", transform=turned, text_anchor="middle"))
    for number, one in enumerate(series):
        colour = f"var(--c{number % COLOURS})"
        for points in _pieces(one):
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (place(*point) for point in points))
            parts.append(element("path", class_="line", stroke=colour, d=f"M{path}"))
            if one.dots or len(points) == 1:
                parts += [_dot(*place(*point), colour, 2.5) for point in points]
        if one.mark is not None:
            parts.append(_dot(*place(*one.mark), colour, 4))
    label = y_label or ", ".join(one.name for one in series)
    legend = _legend([one.name for one in series]) if len(series) > 1 else Html("")
    return join([_svg(width, height, label, parts), legend])


def bar_plot(bars: Sequence[tuple[str, float, str]], *, label: str, width: int = 520) -> Html:
    """Return horizontal bars: (name, value, text beside the bar)."""
    height, row = 24 * len(bars) + 4, 24
    names = max((len(name) for name, _, _ in bars), default=0)
    beside = max((len(said) for _, _, said in bars), default=0) * _LETTER + 10
    left = min(names * _LETTER + 16, width * 0.45)  # some letters are wider than others
    most = max((value for _, value, _ in bars), default=0) or 1
    parts: list[str] = []
    for at, (name, value, said) in enumerate(bars):
        y, length = at * row + 3, max(value, 0) / most * max(width - left - beside, 20)
        short = name if len(name) * _LETTER + 16 <= left else name[: max(int(left / _LETTER) - 3, 1)] + "…"
        bar = element("rect", x=f"{left:.1f}", y=y, width=f"{length:.1f}", height=row - 6, fill="var(--c0)", rx=2)
        tip = element("title", f"{name}: {said}")
        named = text("", left - 6, y + 13, short, "end")
        parts.append(element("g", tip, named, bar, text("soft", left + length + 6, y + 13, said, "start")))
    return _svg(width, height, label, parts)


def histogram(
    values: Sequence[int], edges: Sequence[float], *, x_label: str, size: tuple[int, int] = (520, 240)
) -> Html:
    """Return upright bars: how many values lie between each two edges."""
    width, height = size
    most, low, high = max(values, default=0) or 1, edges[0], edges[-1]
    scale_x, scale_y = (width - _LEFT - _RIGHT) / ((high - low) or 1), (height - _TOP - _BOTTOM) / most
    parts: list[str] = []
    for tick in ticks(0, most):
        y = height - _BOTTOM - tick * scale_y
        parts += [line("grid", _LEFT, y, width - _RIGHT, y), text("soft", _LEFT - 6, y + 4, f"{tick:g}", "end")]
    for tick in ticks(low, high):
        parts.append(text("soft", _LEFT + (tick - low) * scale_x, height - _BOTTOM + 16, f"{tick:g}"))
    for value, start, end in zip(values, edges, edges[1:], strict=False):
        tall = value * scale_y
        tip = element("title", f"{start:.4g} to {end:.4g}: {value}")
        place = {"x": f"{_LEFT + (start - low) * scale_x:.1f}", "y": f"{height - _BOTTOM - tall:.1f}"}
        side = max((end - start) * scale_x - 1, 0.5)
        parts.append(element("rect", tip, **place, width=f"{side:.1f}", height=f"{tall:.1f}", fill="var(--c0)"))
    parts.append(text("soft", (_LEFT + width - _RIGHT) / 2, height - 8, x_label))
    return _svg(width, height, x_label, parts)


def heat_map(names: Sequence[str], matrix: Sequence[Sequence[int]], *, rows: str, columns: str) -> Html:
    """Return a matrix of counts as shades, each row by its own sum; the counts are in the tips."""
    cell = 26 if len(names) <= 25 else 12
    letter = min(12, cell - 2)
    left = max((len(name) for name in names), default=0) * letter * 0.6 + 24
    side = cell * len(names)
    parts: list[str] = []
    for at, name in enumerate(names):
        y, x = left + at * cell + cell * 0.7, left + at * cell + cell * 0.7
        size = f"font-size:{letter}px"
        parts.append(element("text", name, x=f"{left - 5:.1f}", y=f"{y:.1f}", text_anchor="end", style=size))
        turned = f"translate({x:.1f} {left - 5:.1f}) rotate(-90)"
        parts.append(element("text", name, transform=turned, style=size))
    for at, values in enumerate(matrix):
        total = sum(values) or 1
        for to, value in enumerate(values):
            if value:
                tip = element("title", f"{rows} {names[at]}, {columns} {names[to]}: {value}")
                where = {"x": f"{left + to * cell:.1f}", "y": f"{left + at * cell:.1f}"}
                shade = f"{0.12 + 0.88 * value / total:.2f}"
                colour = "var(--c2)" if at == to else "var(--c4)"
                shape = element("rect", tip, **where, width=cell - 1, height=cell - 1, fill=colour, fill_opacity=shade)
                parts.append(shape)
                if cell > 20:
                    middle = (left + to * cell + cell / 2, left + at * cell + cell * 0.66)
                    parts.append(text("halo", *middle, str(value)))
    frame = element("rect", class_="frame", x=f"{left:.1f}", y=f"{left:.1f}", width=side, height=side)
    parts += [frame, text("soft", left / 2, 14, f"{rows} ↓ {columns} →")]
    return element(
        "div", _svg(round(left + side + 4), round(left + side + 4), f"{rows} by {columns}", parts), class_="wide"
    )


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers between two limits, about as many as asked for.

    Example:
        >>> ticks(0, 1)
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    rough = (high - low) / most
    if not rough > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.10g}") for i in range(first, last + 1)]


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Html:
    """Return a straight line of a class of the page."""
    return Html(f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')


def text(kind: str, x: float, y: float, said: str, anchor: str = "middle") -> Html:
    """Return text of a class of the page."""
    return element("text", said, class_=kind, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def _svg(width: float, height: float, label: str, parts: Sequence[str]) -> Html:
    box = f"0 0 {width} {height}"
    return element("svg", *parts, viewBox=box, width=width, role="img", aria_label=label)


def _dot(x: float, y: float, colour: str, radius: float) -> Html:
    return element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=radius, fill=colour)


def _legend(names: Sequence[str]) -> Html:
    marks = [
        element("span", element("span", "■ ", style=f"color:var(--c{i % COLOURS})"), name, style="margin-right:1rem")
        for i, name in enumerate(names)
    ]
    return element("p", *marks)


def _pieces(series: Series) -> list[list[tuple[float, float]]]:
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(series.x, series.y, strict=True):
        if y is None or not math.isfinite(y):
            pieces.append([])
        else:
            pieces[-1].append((x, y))
    return [piece for piece in pieces if piece]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return low - room, high + room
