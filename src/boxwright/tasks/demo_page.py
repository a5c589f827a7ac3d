"""The demo's page: pictures of what the detector finds, its curves, its fastest form, and what to do next."""

import base64
from collections.abc import Mapping, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.optimize.candidates import ORIGINAL
from boxwright.optimize.page import make_plot
from boxwright.optimize.report import Report
from boxwright.report.page import Html, element, figures, make_page, section, table
from boxwright.report.plots import Series, line_plot

Points = Sequence[tuple[float, float]]
NEXT = (
    ("Check your own pictures and labels (COCO, VOC or YOLO):", "boxwright data check my_set/"),
    ("Train on them:", "boxwright train -n yolox_nano --data my_set/ --precision bf16 --out runs/train/mine"),
    (
        "Find the fastest form that keeps its accuracy:",
        "boxwright optimize runs/train/mine/weights/best.safetensors --data my_set/",
    ),
)
"""The commands to continue with, each with its purpose."""

_STYLE = """
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(220px, 1fr)); gap: .6rem; }
.pictures img { width: 100%; border-radius: 4px; display: block; }
"""


def make_demo_page(
    summary: str,
    numbers: Sequence[tuple[str, str]],
    pictures: Sequence[NDArray[np.uint8]],
    losses: Points,
    scores: Mapping[str, Points],
    report: Report,
) -> str:
    """Return the whole page as text; it needs no network.

    Args:
        summary: what was done.
        numbers: what was reached: name and value.
        pictures: unseen scenes with boxes, BGR.
        losses: (step, loss).
        scores: (step, value) by the score's name.
        report: of the optimiser.
    """
    images = [Html(f'<img alt="a scene with the shapes found in it" src="{_as_url(p)}">') for p in pictures]
    loss = line_plot([_series("loss", losses)], x_label="step", y_label="loss")
    score = line_plot([_series(*pair) for pair in scores.items()], x_label="step", y_range=(0, 1))
    captioned = [
        element("figure", plot, element("figcaption", caption))
        for plot, caption in ((loss, "loss"), (score, "score on unseen scenes"))
    ]
    return make_page(
        "Boxwright demo",
        summary,
        figures([*numbers, *_speed(report)]),
        section("What it finds in scenes it has not seen", element("div", *images, class_="pictures")),
        section("Training", element("div", *captioned, class_="columns halves")),
        section(
            "Inference",
            Html(make_plot(report)),
            _table(report),
            element("p", element("a", "The whole report", href="optimize/report.html")),
        ),
        section("Your own pictures", *(part for why, command in NEXT for part in (why, element("pre", command)))),
        style=_STYLE,
    )


def _speed(report: Report) -> list[tuple[str, str]]:
    """Return the speed-up of the best form; nothing if there is none."""
    best = report.best_method()
    before, after = report.original.latency_ms, None if best is None else report.row(best).latency_ms
    if best in (None, ORIGINAL) or before is None or not after:
        return []
    return [(f"as fast as plain PyTorch ({best}: {after:.1f} ms, PyTorch: {before:.1f} ms)", f"{before / after:.1f}x")]


def _table(report: Report) -> Html:
    before, best = report.original.latency_ms, report.best_method()
    rows = [
        (
            row.method,
            row.status,
            "" if row.latency_ms is None else f"{row.latency_ms:.2f}",
            "" if before is None or not row.latency_ms else f"{before / row.latency_ms:.2f}x",
            "" if row.accuracy is None else f"{row.accuracy:.3f}",
        )
        for row in report.rows
    ]
    kinds = ["best" if row.method == best else "" for row in report.rows]
    return table(("method", "status", "latency ms", "speed-up", "AP"), rows, texts=2, kinds=kinds)


def _series(name: str, points: Points) -> Series:
    return Series(name=name, x=[x for x, _ in points], y=[y for _, y in points], dots=len(points) < 10)


def _as_url(picture: NDArray[np.uint8]) -> str:
    data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()
    return "data:image/jpeg;base64," + base64.b64encode(data).decode()
