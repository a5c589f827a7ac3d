"""The statistics of a set as a page."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.data.stats import SIZE_LIMITS_PX, Stats
from boxwright.report.page import Html, element, figures, make_page, section, table
from boxwright.report.plots import bar_plot, histogram

MOST_BARS = 60
_BINS = 40


def make_stats_page(stats: Stats, name: str) -> str:
    """Return the page as text.

    Args:
        stats: of the set.
        name: of the set.
    """
    order = np.argsort(-np.array(stats.boxes_per_class, np.int64), kind="stable").tolist()
    classes = [(stats.names[i], stats.boxes_per_class[i], str(stats.boxes_per_class[i])) for i in order[:MOST_BARS]]
    rows = [(stats.names[i], str(stats.boxes_per_class[i]), str(stats.images_per_class[i])) for i in order]
    small, large = (f"{limit:g}" for limit in SIZE_LIMITS_PX)
    head = [("images", stats.images), ("without a box", stats.empty_images), ("boxes", stats.boxes)]
    head += [("crowds", stats.crowds), ("classes", len(stats.names))]
    sizes = [(kind, count, f"{count} ({count / max(stats.boxes, 1):.0%})") for kind, count in stats.sizes.items()]
    images = [
        (f"{width} × {height}" if width else "unknown", count, str(count))
        for (height, width), count in list(stats.image_sizes_hw.items())[:10]
    ]
    top = int(stats.boxes_per_image.max(initial=0))
    step = 1 + top // _BINS  # bins of whole numbers, or some would hold twice as many values as others
    return make_page(
        name,
        figures((what, str(value)) for what, value in head),
        section(
            "Classes",
            bar_plot(classes, label="boxes per class", width=720),
            element(
                "details",
                element("summary", "All classes"),
                table(("class", "boxes", "images"), rows),
            ),
        ),
        section(
            "Boxes",
            element(
                "div",
                _titled(
                    "Boxes per image", _histogram(stats.boxes_per_image, np.arange(0, top + 1 + step, step), "boxes")
                ),
                _titled(f"Size (small below {small}, large from {large} pixels)", bar_plot(sizes, label="size")),
                _titled("Side in pixels (root of the area)", _histogram(stats.sides_px, _BINS, "pixels")),
                _titled("Width by height", _histogram(np.log2(stats.aspect_ratios), _BINS, "as a power of 2")),
                class_="columns halves",
            ),
        ),
        section("Images", bar_plot(images, label="image sizes")),
    )


def _titled(title: str, plot: Html) -> Html:
    return element("div", element("h3", title), plot)


def _histogram(values: NDArray[Any], bins: NDArray[np.int64] | int, label: str) -> Html:
    counts, edges = np.histogram(values, bins) if len(values) else (np.zeros(1, int), np.array([0.0, 1.0]))
    return histogram(counts.tolist(), edges.tolist(), x_label=label, size=(440, 220))
