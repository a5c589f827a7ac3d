"""The page of a comparison: the numbers, the classes, and the pictures that changed, side by side."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core.boxes import xywh_to_xyxy
from boxwright.core.errors import DataError
from boxwright.report.page import Html, element, figures, make_page, section, table
from boxwright.tasks.gallery import LARGEST, embed, rectangle
from boxwright.vision.decode import read_image

if TYPE_CHECKING:
    from boxwright.evaluation.difference import Change, Difference, ImageChange, Side
    from boxwright.tasks.compare import Comparison, Contender

MOST_IMAGES = 24
SIDE_PX = 480

STYLE = """
.pair { margin: 0 0 1.4rem; } .pair > div { display: grid; grid-template-columns: 1fr 1fr; gap: .6rem; }
.pair svg { width: 100%; border-radius: 4px; } figcaption { font-size: .9rem; overflow-wrap: anywhere; }
.pair rect { fill: none; stroke-width: 2.5; vector-effect: non-scaling-stroke; }
rect.right { stroke: #35e07f; } rect.false { stroke: #ff5a5f; } rect.missed { stroke: #ffd166; stroke-dasharray: 7 4; }
.up { color: var(--good); } .down { color: var(--bad); }
"""


def make_comparison_page(comparison: "Comparison", conditions: Mapping[str, str]) -> str:
    """Return the page as text."""
    one, other, difference = comparison.first, comparison.second, comparison.difference
    change = difference.ap
    head = [
        ("AP, B less A", _signed(change.value)),
        ("95 % interval", f"{_signed(change.low)} to {_signed(change.high)}"),
        ("times as fast", f"{one.timing.median_ms / max(other.timing.median_ms, 1e-9):.2f}"),
        ("MB, B less A", f"{other.size_mb - one.size_mb:+.2f}"),
    ]
    return make_page(
        "Comparison",
        element("p", element("b", "A "), one.name, Html(" &nbsp; "), element("b", "B "), other.name),
        figures(head),
        _verdict(change),
        section(
            "Both models",
            table(
                ("", "AP", "AP50", "latency ms", "p95 ms", "MB", "best threshold"), [_row("A", one), _row("B", other)]
            ),
            "Latency is for one image at a time, from the file to its boxes; the models took turns.",
        ),
        section("Classes", element("div", _classes(difference, one, other), class_="long")),
        _pictures(comparison),
        section("Conditions", element("ul", *(element("li", f"{name}: {said}") for name, said in conditions.items()))),
        style=STYLE,
    )


def _verdict(change: "Change") -> str:
    if change.low > 0:
        return "B is better: the whole interval is above zero."
    if change.high < 0:
        return "A is better: the whole interval is below zero."
    return "These images do not tell which one is better: the interval holds zero."


def _row(letter: str, one: "Contender") -> list[str]:
    numbers = [f"{100 * one.metrics.AP:.2f}", f"{100 * one.metrics.AP50:.2f}"]
    times = [f"{one.timing.median_ms:.2f}", f"{one.timing.p95_ms:.2f}"]
    return [letter, *numbers, *times, f"{one.size_mb:.2f}", f"{one.threshold:.2f}"]


def _classes(difference: "Difference", one: "Contender", other: "Contender") -> Html:
    known = {name: change for name, change in difference.per_class.items() if change is not None}
    rows = [
        (
            name,
            str(one.metrics.per_class[name].truths),
            f"{100 * one.metrics.per_class[name].AP:.1f}",
            f"{100 * other.metrics.per_class[name].AP:.1f}",
            element("span", _signed(known[name].value), class_=_direction(known[name])),
            f"{_signed(known[name].low)} to {_signed(known[name].high)}",
        )
        for name in sorted(known, key=lambda name: known[name].value)
    ]
    return table(("class", "objects", "AP of A", "AP of B", "B less A", "95 % interval"), rows)


def _direction(change: "Change") -> str:
    if change.high - change.low < 1e-9:  # all objects of the class are in one image: draws can't tell
        return ""
    return "up" if change.low > 0 else "down" if change.high < 0 else ""


def _pictures(comparison: "Comparison") -> Html:
    difference, records = comparison.difference, comparison.records
    place = {int(image_id): at for at, image_id in enumerate(records.image_ids.tolist())}
    worse = [change for change in difference.images if change.balance < 0]
    better = [change for change in difference.images if change.balance > 0]
    same = [change for change in difference.images if change.balance == 0]
    chosen = [*worse[: MOST_IMAGES // 2], *better[: MOST_IMAGES // 2]]
    chosen += [*worse[MOST_IMAGES // 2 :], *better[MOST_IMAGES // 2 :], *same][: MOST_IMAGES - len(chosen)]
    chosen.sort(key=lambda change: change.balance)
    pairs: list[Html] = []
    size = 0
    for change in chosen:
        path = records.path(place[int(difference.first.verdicts.image_ids[change.image])])
        try:
            image = read_image(path)
        except DataError:  # it was readable when it was scored
            continue
        pair = _pair(change, image, path.name, (difference.first, difference.second))
        size += len(pair)
        if size > LARGEST:
            break
        pairs.append(pair)
    return section(
        "Pictures that changed",
        f"{len(better)} images became better, {len(worse)} worse; the {len(pairs)} largest changes, the worst first. "
        "A is on the left, B on the right, each at its threshold with the best F1. Green: right. Red: wrong. Dashed "
        "yellow: an object that was not found.",
        *pairs,
        "" if pairs else "No picture changed.",
    )


def _pair(change: "ImageChange", image: NDArray[np.uint8], file: str, sides: tuple["Side", "Side"]) -> Html:
    height, width = image.shape[:2]
    # The second picture shows the data of the first.
    name = f"image-{change.image}"
    picture = element("image", href=embed(image, SIDE_PX), id=name, width=width, height=height)
    shown = [
        element(
            "svg",
            picture if at == 0 else element("use", href=f"#{name}"),
            *_boxes(side, change.image),
            viewBox=f"0 0 {width} {height}",
            role="img",
            aria_label=f"{'AB'[at]}: {file}",
        )
        for at, side in enumerate(sides)
    ]
    changes = (
        f"{change.gained} found by B only, {change.lost} found by A only, "
        f"wrong boxes {change.false_before} in A, {change.false_after} in B"
    )
    caption = element("figcaption", element("b", file), f" · {changes}")
    return element("figure", caption, element("div", *shown), class_="pair")


def _boxes(side: "Side", image: int) -> Sequence[Html]:
    v: Any = side.verdicts
    missed = [
        rectangle("missed", xywh_to_xyxy(v.truth_boxes_xywh[at]), v.names[v.truth_class_ids[at]])
        for at in np.flatnonzero((v.truth_image == image) & ~side.found).tolist()
    ]
    shown = [
        rectangle(
            "right" if v.kind[at] == 0 else "false",
            xywh_to_xyxy(v.boxes_xywh[at]),
            f"{v.names[v.class_ids[at]]} {v.scores[at]:.2f}",
        )
        for at in np.flatnonzero((v.image == image) & side.shown).tolist()
    ]
    return [*missed, *shown]


def _signed(value: float) -> str:
    """Return a part as points with its sign."""
    return f"{100 * value:+.2f}"
