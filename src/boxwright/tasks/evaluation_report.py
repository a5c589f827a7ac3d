"""The report of an evaluation: `report.html`, one file with everything in it, and `report.json`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core.files import write_whole
from boxwright.data.records import Records
from boxwright.report.page import Html, element, figures, join, make_page, section, table
from boxwright.report.plots import Series, bar_plot, heat_map, line_plot
from boxwright.tasks.gallery import LARGEST, SCRIPT, STYLE, draw_gallery, suspect_pictures, worst_errors

if TYPE_CHECKING:  # they need the evaluation extra
    from boxwright.evaluation.analysis import Analysis, Slice
    from boxwright.evaluation.curves import Curve

MOST_CURVES = 80
MOST_SQUARES = 120
MOST_CONFUSIONS = 15
LARGEST_PAGE = 5_000_000
"""How many bytes a page may have."""

_STYLE = """
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1rem; }
@media (max-width: 560px) { .pair { grid-template-columns: 1fr; } }
"""
_LARGEST_MATRIX = 1_000_000
_FRAME = 50_000  # bytes for styles, headings and the choices of the filters
_FOR_SUSPECTS = 0.3  # part of the room for pictures


def write_report(
    folder: Path, analysis: "Analysis", records: Records, conditions: Mapping[str, str], numbers: Mapping[str, Any]
) -> Path:
    """Write both files and return the page's path.

    Args:
        folder: where to; it is created.
        analysis: of the detector on the set.
        records: the set, for the pictures.
        conditions: what was evaluated and how, shown at the end of the page.
        numbers: further values for `report.json`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    values = {**analysis.to_dict(), **numbers, "conditions": dict(conditions)}
    write_whole(folder / "report.json", json.dumps(values, ensure_ascii=False))
    page = folder / "report.html"
    write_whole(page, make_evaluation_page(analysis, records, conditions))
    return page


def make_evaluation_page(analysis: "Analysis", records: Records, conditions: Mapping[str, str]) -> str:
    """Return the page as text."""
    names, m = analysis.verdicts.names, analysis.metrics
    place = {int(image_id): at for at, image_id in enumerate(records.image_ids.tolist())}

    def path_of(image_id: int) -> Path:
        return records.path(place[image_id])

    def truths_of(image_id: int) -> NDArray[Any]:
        return records.boxes(place[image_id])

    head = [(_points(m.AP), "AP"), (_points(m.AP50), "AP50"), (_points(m.AP75), "AP75")]
    head += [(str(m.images), "images"), (str(m.truths), "objects"), (f"{analysis.threshold:.2f}", "best threshold")]
    first = [
        _subject(conditions),
        figures((name, value) for value, name in head),
        _errors(analysis),
        _parts(analysis),
        _classes(analysis),
        _confusion(analysis),
        _calibration(analysis),
    ]
    last = section(
        "COCO's twelve numbers",
        element("pre", "\n".join(m.lines())),
        element("ul", *(element("li", f"{name}: {said}") for name, said in conditions.items())),
    )
    # Pictures get the room that the numbers of many classes leave.
    room = min(LARGEST, max(LARGEST_PAGE - _FRAME - sum(len(part.encode()) for part in [*first, last]), 0))
    suspects, size = draw_gallery(
        suspect_pictures(analysis), names, path_of, truths_of, largest=int(room * _FOR_SUSPECTS)
    )
    gallery, _ = draw_gallery(worst_errors(analysis.verdicts), names, path_of, truths_of, largest=room - size)
    return make_page(
        "Evaluation report",
        *first,
        section(
            "Errors in pictures",
            "For each kind of error the detections with the highest scores, and the largest missed objects. Solid red: "
            "the detection. Dashed green: the object that it concerns; dotted green: other objects.",
            gallery,
        ),
        section(
            "Suspected faults of the labels",
            "Where a confident detection, or a second label, contradicts the label. If the detector was trained on "
            "these labels, it has learnt their faults too, and this list is short.",
            suspects if analysis.suspects else "None.",
        ),
        last,
        style=STYLE + _STYLE,
        script=SCRIPT,
    )


def _subject(conditions: Mapping[str, str]) -> Html:
    """Return which model was evaluated on which set, as far as it was told."""
    words = [element("b", conditions[key]) for key in ("model", "data") if key in conditions]
    return element("p", *words[:1], *(" on ", words[1]) if len(words) > 1 else ()) if words else Html("")


def _errors(analysis: "Analysis") -> Html:
    from boxwright.evaluation.analysis import EXPLAINED

    cost, count = analysis.costs.cost, analysis.costs.count
    kinds = sorted(EXPLAINED, key=lambda kind: -cost[kind])
    bars = [(kind, 100 * cost[kind], f"{100 * cost[kind]:.1f}") for kind in kinds]
    rows = [(kind, EXPLAINED[kind], str(count[kind]), f"{100 * cost[kind]:.2f}") for kind in kinds]
    rows += [
        ("all false", "every wrong box", str(count["all_false"]), f"{100 * cost['all_false']:.2f}"),
        ("all missed", "every object without a right box", str(count["all_missed"]), f"{100 * cost['all_missed']:.2f}"),
    ]
    return section(
        "What the errors cost",
        f"AP50 points that would be won if all errors of one kind were corrected; AP50 is "
        f"{100 * analysis.costs.ap:.1f} here, with at most 100 boxes per image (TIDE).",
        element(
            "div",
            bar_plot(bars, label="AP50 points by kind of error", width=420),
            table(("error", "meaning", "boxes", "AP50 points"), rows, texts=2),
            class_="columns halves",
        ),
    )


def _parts(analysis: "Analysis") -> Html:
    from boxwright.evaluation.analysis import Slice

    m = analysis.metrics
    sizes = [
        Slice(name="small (below 32²)", AP=None if m.AP_small < 0 else m.AP_small, truths=-1),
        Slice(name="medium (to 96²)", AP=None if m.AP_medium < 0 else m.AP_medium, truths=-1),
        Slice(name="large", AP=None if m.AP_large < 0 else m.AP_large, truths=-1),
    ]
    return section(
        "Where it is good and bad",
        element(
            "div",
            _slices("Size in pixels", sizes),
            _slices("Objects in the image", analysis.crowding),
            _slices("Shape (width by height)", analysis.aspects),
            class_="columns",
        ),
    )


def _slices(title: str, slices: Sequence["Slice"]) -> Html:
    bars = [
        (one.name, one.AP or 0.0, _points(one.AP) + (f" of {one.truths}" if one.truths >= 0 else "")) for one in slices
    ]
    return element("div", element("h3", title), bar_plot(bars, label=f"AP by {title.lower()}", width=330))


def _classes(analysis: "Analysis") -> Html:
    names = analysis.verdicts.names
    rows = []
    for name, curve in zip(names, analysis.curves, strict=True):
        values = analysis.metrics.per_class[name]
        numbers = [_points(x) for x in (values.AP, values.AP50, values.AP75, values.AR100)]
        best = "–" if curve.best is None else f"{curve.best:.2f}"
        rows.append((name, str(values.truths), *numbers, best, _points(curve.best_f1)))
    by_truths = np.argsort([-analysis.metrics.per_class[name].truths for name in names], kind="stable")
    chosen = [int(at) for at in by_truths[:MOST_CURVES] if len(analysis.curves[at].thresholds)]
    plots = [element("div", element("h3", names[at]), _curve_plots(analysis.curves[at], (260, 170))) for at in chosen]
    left_out = len(names) - len(chosen)
    more = f"Left out: {left_out} with fewest objects, or without detections." if left_out else ""
    return section(
        "Classes",
        element("h3", "All classes together"),
        _curve_plots(analysis.curve, (520, 300)),
        f"IoU 0.5. The dot is the threshold with the best F1, {analysis.curve.best_f1:.3f}.",
        element(
            "div",
            table(("class", "objects", "AP", "AP50", "AP75", "AR100", "best threshold", "F1 there"), rows),
            class_="long",
        ),
        element(
            "details",
            element("summary", "Curves of each class"),
            element("p", more),
            element("div", *plots, class_="columns halves"),
        ),
    )


def _curve_plots(curve: "Curve", size: tuple[int, int]) -> Html:
    """Return precision over recall, and beside it F1 over the threshold."""
    mark = None if curve.best is None else (curve.best, curve.best_f1)
    recall = Series(name="precision", x=curve.recall.tolist(), y=curve.precision.tolist())
    f1 = Series(name="F1", x=curve.thresholds.tolist(), y=curve.f1.tolist(), mark=mark)
    plots = [
        line_plot([line], x_label=label, y_label=line.name, x_range=(0, 1), y_range=(0, 1.02), size=size)
        for line, label in ((recall, "recall"), (f1, "score threshold"))
    ]
    return element("div", *plots, class_="pair")


def _confusion(analysis: "Analysis") -> Html:
    names = [*analysis.verdicts.names, "background"]
    matrix = analysis.confusion
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    wrong[-1] = wrong[:, -1] = 0
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_CONFUSIONS].tolist()
    pairs = [(at // len(names), at % len(names)) for at in order if wrong.flat[at]]
    rows = [(names[a], names[b], str(matrix[a, b]), _share(matrix[a, b] / matrix[a].sum())) for a, b in pairs]
    # Only the classes that occur: others are empty rows.
    used = np.flatnonzero((matrix.sum(axis=0) + matrix.sum(axis=1) > 0) | (np.arange(len(names)) == len(names) - 1))
    shown = Html("")
    if len(used) <= MOST_SQUARES:
        part = matrix[np.ix_(used, used)].tolist()
        shown = heat_map([names[at] for at in used], part, rows="is", columns="found as")
    if not shown or len(shown.encode()) > _LARGEST_MATRIX:
        shown = element("p", "The matrix is too large for a page. It is in report.json.")
    return section(
        "Which class is taken for which",
        f"Boxes with a score of at least {analysis.threshold:.2f}, the threshold with the best F1 over all classes.",
        shown,
        table(("is", "found as", "boxes", "of all"), rows, texts=2) if rows else "No class is taken for another.",
    )


def _calibration(analysis: "Analysis") -> Html:
    bins = [b for b in analysis.calibration["bins"] if b["count"]]
    x = [b["avg_confidence"] for b in bins]
    y = [b["avg_accuracy"] for b in bins]
    plot = line_plot(
        [Series(name="found", x=x, y=y, dots=True), Series(name="ideal", x=[0, 1], y=[0, 1])],
        x_label="score",
        y_label="part of the boxes that are right",
        x_range=(0, 1),
        y_range=(0, 1.02),
    )
    return section(
        "Calibration",
        f"How many boxes of a score are right. The expected calibration error is {analysis.calibration['ece']:.3f}, "
        f"the largest of a tenth {analysis.calibration['mce']:.3f}.",
        join([plot]),
    )


def _share(value: float) -> str:
    return "<1%" if value < 0.005 else f"{value:.0%}"


def _points(value: float | None) -> str:
    """Return a part as points; a dash for COCO's -1."""
    return "–" if value is None or value < 0 else f"{100 * value:.1f}"
