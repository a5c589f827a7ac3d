import math
import re
from xml.etree import ElementTree

import pytest

from boxwright.report.plots import Series, bar_plot, heat_map, histogram, line_plot, ticks


def drawn(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{svg}</div>")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-3, 7, [-2, 0, 2, 4, 6]),
        (0.301, 0.306, [0.301, 0.302, 0.303, 0.304, 0.305, 0.306]),
        (0, 40_000, [0, 10_000, 20_000, 30_000, 40_000]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round_numbers_inside_the_limits(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_a_missing_value_cuts_a_line_and_none_is_drawn() -> None:
    plot = line_plot([Series(name="loss", x=[0, 1, 2, 3, 4], y=[1, 2, None, math.nan, 3])])
    paths = [path.get("d", "") for path in drawn(plot).iter("path")]
    assert [path.count("L") for path in paths] == [1, 0]
    assert "nan" not in plot


def test_points_lie_where_the_axes_say() -> None:
    plot = line_plot([Series(name="a", x=[0, 1], y=[0, 1])], x_range=(0, 1), y_range=(0, 1), size=(520, 300))
    assert re.search(r'd="M52\.0 258\.0L508\.0 12\.0"', plot)


def test_only_several_lines_need_a_legend() -> None:
    one, other = Series(name="a<b", x=[0], y=[1]), Series(name="c", x=[0], y=[1])
    assert "■" not in line_plot([one])
    assert line_plot([one, other]).count("■") == 2
    assert "a<b" not in line_plot([one, other])


def test_nothing_can_be_plotted() -> None:
    for plot in (
        line_plot([]),
        line_plot([Series(name="a", x=[], y=[])]),
        bar_plot([], label="none"),
        histogram([], [0, 1], x_label="none"),
        heat_map([], [], rows="is", columns="found as"),
    ):
        assert drawn(plot).find(".//svg") is not None


def test_bars_are_as_long_as_their_values() -> None:
    bars = drawn(bar_plot([("a", 4, "4"), ("b & c", 1, "1"), ("d", 0, "0")], label="l")).iter("rect")
    lengths = [float(bar.get("width", "")) for bar in bars]
    assert lengths == pytest.approx([lengths[0], lengths[0] / 4, 0], abs=0.1)


def test_a_histogram_has_a_bar_for_each_pair_of_edges() -> None:
    bars = list(drawn(histogram([1, 3], [0, 10, 20], x_label="x")).iter("rect"))
    heights = [float(bar.get("height", "")) for bar in bars]
    assert heights[1] == pytest.approx(3 * heights[0], abs=0.2)
    assert [bar.findtext("title") for bar in bars] == ["0 to 10: 1", "10 to 20: 3"]


def test_a_heat_map_draws_the_cells_that_are_not_empty_and_says_their_counts() -> None:
    shown = drawn(heat_map(["cat", "<dog>"], [[3, 1], [0, 2]], rows="is", columns="found as"))
    assert [tip.text for tip in shown.iter("title")] == [
        "is cat, found as cat: 3", "is cat, found as <dog>: 1", "is <dog>, found as <dog>: 2",
    ]  # fmt: skip
