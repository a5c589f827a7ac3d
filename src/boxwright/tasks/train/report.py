"""A run in pictures: losses and AP over the steps, and a page that holds everything."""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from boxwright.core.log import get_logger
from boxwright.core.packages import missing_packages
from boxwright.report.page import Html, element, figures, make_page, section, table
from boxwright.report.plots import Series, line_plot
from boxwright.tasks.train.pictures import LARGEST, LEGEND, find_pictures

_log = get_logger(__name__)
_PICTURE = "curves.png"
_LOSSES = ("total", "iou", "objectness", "classes", "l1")
_SCORES = ("AP", "AP50", "AP75")
MOST_POINTS = 600


def write_report(folder: Path, result: Mapping[str, Any], plan: Sequence[str]) -> None:
    """Write `report.html`, one file with everything in it, and `curves.png` if matplotlib is installed."""
    steps, scores = read_metrics(folder)
    if missing_packages(["matplotlib"]):
        _log.info("No %s: matplotlib is not installed. Run: pip install 'boxwright[plots]'", _PICTURE)
    else:
        _draw_picture(steps, scores, folder / _PICTURE)
    settings = (folder / "args.yaml").read_text(encoding="utf-8")
    page = _make_page(folder.name, steps, scores, result, plan, settings, _show_last(folder))
    (folder / "report.html").write_text(page, encoding="utf-8")


def _make_page(
    name: str,
    steps: Sequence[Mapping[str, float]],
    scores: Sequence[Mapping[str, float]],
    result: Mapping[str, Any],
    plan: Sequence[str],
    settings: str,
    pictures: str,
) -> str:
    best = max(scores, key=lambda s: s["AP"], default=None)
    head = [("best AP", "–" if best is None else f"{best['AP']:.4f}")]
    head += [
        ("at step", "–" if best is None else f"{best['step']:g}"),
        ("steps", f"{steps[-1]['step']:g}" if steps else "0"),
    ]
    rows = [[f"{s['step']:g}", *(f"{s[key]:.4f}" for key in _SCORES)] for s in scores]
    kinds = ["best" if s is best else "" for s in scores]
    return make_page(
        name,
        figures(head),
        draw_curves(steps, scores),
        section("Evaluations", table(("step", *_SCORES), rows, texts=0, kinds=kinds)),
        pictures,
        section("Result", element("pre", json.dumps(dict(result), indent=1, ensure_ascii=False))),
        section("Plan", element("pre", "\n".join(plan))),
        section("Settings", element("pre", settings)),
        style="img { max-width: 100%; }",
    )


def _show_last(folder: Path) -> str:
    """Return the last sheet of pictures; "" if there is none, or if it is larger than training makes them."""
    found = find_pictures(folder)
    if not found or found[max(found)].stat().st_size > LARGEST:
        return ""
    step, path = found.popitem()
    data = base64.b64encode(path.read_bytes()).decode()
    image = element("img", src=f"data:image/jpeg;base64,{data}", alt=f"held-out images at step {step}")
    return section("Pictures", f"Step {step}. {LEGEND}", image)


def draw_curves(steps: Sequence[Mapping[str, float]], scores: Sequence[Mapping[str, float]]) -> Html:
    """Return losses, AP and the learning rate over the steps, as `read_metrics` returns them."""
    return section(
        "Curves",
        element(
            "div",
            _plot("Loss", steps, _LOSSES, y_from=0),
            _plot("AP on held-out images", scores, _SCORES, y_from=0, dots=True),
            _plot("Learning rate", steps, ("lr",)),
            class_="columns halves",
        ),
    )


def _plot(
    title: str,
    rows: Sequence[Mapping[str, float]],
    keys: Sequence[str],
    *,
    y_from: float | None = None,
    dots: bool = False,
) -> Html:
    shown = thin(rows)
    found = [s[key] for s in shown for key in keys if math.isfinite(s[key])]
    top = max(found, default=1.0) * 1.05 or 1.0
    lines = [Series(name=key, x=[s["step"] for s in shown], y=[s[key] for s in shown], dots=dots) for key in keys]
    y_range = None if y_from is None else (y_from, top)
    return element("div", element("h3", title), line_plot(lines, x_label="step", y_range=y_range))


def thin(rows: Sequence[Mapping[str, float]]) -> Sequence[Mapping[str, float]]:
    """Return as many of the rows as a plot has pixels for."""
    return rows[:: max(1, len(rows) // MOST_POINTS)]


def read_metrics(folder: Path) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Return the metrics of steps and those of evaluations; of a step that was repeated after a resume, the last."""
    steps: dict[float, dict[str, float]] = {}
    scores: dict[float, dict[str, float]] = {}
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        try:
            values = json.loads(line)
        except ValueError:  # a line that a full disk or a power cut has torn
            continue
        (scores if "AP" in values else steps)[values["step"]] = values
    return [steps[s] for s in sorted(steps)], [scores[s] for s in sorted(scores)]


def _draw_picture(steps: list[dict[str, float]], scores: list[dict[str, float]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for name in ("total", "iou", "objectness", "classes", "l1"):
        left.plot([s["step"] for s in steps], [s[name] for s in steps], label=name, linewidth=1)
    left.set(title="loss", xlabel="step", ylim=(0, None))
    left.legend(loc="upper right")  # the best place takes seconds to find in a long run
    middle.plot([s["step"] for s in steps], [s["lr"] for s in steps], linewidth=1)
    middle.set(title="learning rate", xlabel="step")
    for name in ("AP", "AP50", "AP75"):
        right.plot([s["step"] for s in scores], [s[name] for s in scores], marker="o", markersize=3, label=name)
    right.set(title="held-out images", xlabel="step", ylim=(0, 1))
    if scores:
        right.legend(loc="lower right")
    figure.savefig(path, dpi=110)
