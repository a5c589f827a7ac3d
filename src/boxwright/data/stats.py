"""Statistics of a set: boxes per class and image, sizes, shapes; as text, JSON and a plot."""

import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError
from boxwright.core.packages import require
from boxwright.data.records import PathText, Records

SIZE_LIMITS_PX = (32.0, 96.0)
"""COCO's limits between small, medium and large objects: the side of a square of the same area, in pixels."""

_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_BAR = 30
_MOST_BARS = 40


@dataclass(frozen=True, kw_only=True, eq=False)
class Stats:
    """The statistics of a set. Crowds count as boxes of their class, and in `crowds`.

    Attributes:
        names: the classes.
        images: how many images there are.
        empty_images: how many have no box.
        boxes: how many boxes there are.
        crowds: how many of them are crowds.
        boxes_per_class: by class id.
        images_per_class: how many images have a box of the class, by class id.
        sizes: how many boxes are small, medium and large by COCO's limits.
        sides_px: the square root of each area, float32 (M,).
        aspect_ratios: width by height of the boxes that have both, float32 (at most M,).
        boxes_per_image: int64 (N,).
        image_sizes_hw: how many images have a size, the most frequent first; (0, 0) is unknown.
    """

    names: tuple[str, ...]
    images: int
    empty_images: int
    boxes: int
    crowds: int
    boxes_per_class: tuple[int, ...]
    images_per_class: tuple[int, ...]
    sizes: dict[str, int]
    sides_px: NDArray[np.float32]
    aspect_ratios: NDArray[np.float32]
    boxes_per_image: NDArray[np.int64]
    image_sizes_hw: dict[tuple[int, int], int]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain JSON values; distributions by their quantiles."""
        return {
            "images": self.images,
            "empty_images": self.empty_images,
            "boxes": self.boxes,
            "crowds": self.crowds,
            "classes": [
                {"name": name, "boxes": boxes, "images": images}
                for name, boxes, images in zip(self.names, self.boxes_per_class, self.images_per_class, strict=True)
            ],
            "sizes": dict(self.sizes),
            "side_px": _quantiles(self.sides_px),
            "aspect_ratio": _quantiles(self.aspect_ratios),
            "boxes_per_image": _quantiles(self.boxes_per_image),
            "image_sizes": [
                {"height": height, "width": width, "images": count}
                for (height, width), count in self.image_sizes_hw.items()
            ],
        }

    def lines(self) -> list[str]:
        """Return the numbers as text lines, with a bar for each class."""
        out = [
            f"{self.images} images ({self.empty_images} without a box), {self.boxes} boxes "
            f"({self.crowds} crowds), {len(self.names)} classes",
            _spread("boxes per image", self.boxes_per_image),
            _spread("side in pixels (root of the area)", self.sides_px),
            _spread("width by height", self.aspect_ratios),
            "sizes: " + ", ".join(f"{name} {n} ({n / max(self.boxes, 1):.0%})" for name, n in self.sizes.items()),
            _image_sizes(self.image_sizes_hw),
        ]
        width = max(map(len, self.names), default=0)
        most = max(self.boxes_per_class, default=0)
        for name, boxes, images in zip(self.names, self.boxes_per_class, self.images_per_class, strict=True):
            bar = "#" * round(_BAR * boxes / max(most, 1))
            out.append(f"{name:<{width}}  {boxes:>7} boxes  {images:>6} images  {bar}".rstrip())
        return out

    def plot(self, path: PathText) -> None:
        """Draw the numbers to an image file; its suffix chooses the format (png, svg, pdf).

        Raises:
            MissingDependencyError: matplotlib is not installed.
            DataError: the file can't be written.
        """
        require("matplotlib", extra="plots", by="A plot")
        # Not pyplot: it keeps every figure and picks a display.
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 9), layout="constrained")
        (classes, per_image), (sides, ratios) = figure.subplots(2, 2)
        order = np.argsort(-np.array(self.boxes_per_class, np.int64), kind="stable")[:_MOST_BARS]
        classes.bar(range(len(order)), [self.boxes_per_class[i] for i in order])
        classes.set_xticks(range(len(order)), [self.names[i] for i in order], rotation=90, fontsize=8)
        left_out = len(self.names) - len(order)
        classes.set_title(f"boxes per class ({left_out} rarer ones left out)" if left_out else "boxes per class")
        top = int(self.boxes_per_image.max(initial=0))
        # Bins of whole numbers, or some would hold twice as many values as others.
        step = 1 + top // 50
        per_image.hist(self.boxes_per_image, bins=list(np.arange(-0.5, top + 0.5 + step, step)))
        per_image.set_title("boxes per image")
        sides.hist(self.sides_px, bins=50)
        for limit in SIZE_LIMITS_PX:
            sides.axvline(limit, color="black", linewidth=1, linestyle="--")
        sides.set_title("side in pixels (small | medium | large)")
        ratios.hist(np.log2(self.aspect_ratios), bins=50)
        ratios.set_title("width by height, as a power of 2")
        figure.suptitle(f"{self.images} images, {self.boxes} boxes, {len(self.names)} classes")
        try:
            with warnings.catch_warnings():
                # A class name in letters that the font lacks is harmless.
                warnings.filterwarnings("ignore", message="Glyph .* missing from font")
                figure.savefig(path, dpi=100)
        except (OSError, ValueError) as error:
            raise DataError(f"Cannot draw to {str(path)!r}: {error}. Choose another place or ending.") from error


def compute_stats(records: Records) -> Stats:
    """Return the statistics of a set by its labels alone: no image is read.

    Example:
        >>> boxes = [[[0, 0, 10, 20], [0, 0, 200, 100]], []]
        >>> records = Records.from_lists(
        ...     root=".", paths=["a.jpg", "b.jpg"], boxes_xyxy=boxes, class_ids=[[1, 0], []], names=["cat", "dog"]
        ... )
        >>> stats = compute_stats(records)
        >>> stats.boxes_per_class, stats.empty_images, stats.sizes
        ((1, 1), 1, {'small': 1, 'medium': 0, 'large': 1})
    """
    count = len(records.names)
    per_image = np.diff(records.offsets)
    owner = np.repeat(np.arange(len(records)), per_image)
    # One number for each pair of image and class, so that a class counts once per image.
    pairs = np.unique(owner * count + records.class_ids)
    sides = np.sqrt(np.nan_to_num(records.areas).clip(0))
    small, large = SIZE_LIMITS_PX
    boxes = records.boxes_xyxy[np.isfinite(records.boxes_xyxy).all(axis=1)]
    boxes_wh = boxes[:, 2:] - boxes[:, :2]
    boxes_wh = boxes_wh[(boxes_wh > 0).all(axis=1)]
    sizes = Counter((height, width) for height, width in records.sizes_hw.tolist())
    return Stats(
        names=records.names,
        images=len(records),
        empty_images=int((per_image == 0).sum()),
        boxes=len(sides),
        crowds=int(records.crowd.sum()),
        boxes_per_class=tuple(np.bincount(records.class_ids, minlength=count).tolist()),
        images_per_class=tuple(np.bincount(pairs % count, minlength=count).tolist()) if count else (),
        sizes={
            "small": int((sides < small).sum()),
            "medium": int(((sides >= small) & (sides < large)).sum()),
            "large": int((sides >= large).sum()),
        },
        sides_px=sides,
        aspect_ratios=boxes_wh[:, 0] / boxes_wh[:, 1],
        boxes_per_image=per_image,
        image_sizes_hw=dict(sizes.most_common()),
    )


def _quantiles(values: NDArray[Any]) -> dict[str, float]:
    if not len(values):
        return {}
    found = np.quantile(values.astype(np.float64), _QUANTILES)
    return {f"{round(part * 100)}%": round(float(value), 3) for part, value in zip(_QUANTILES, found, strict=True)}


def _spread(title: str, values: NDArray[Any]) -> str:
    parts = _quantiles(values)
    if not parts:
        return f"{title}: none"
    return (
        f"{title}: {parts['0%']:.4g} to {parts['100%']:.4g}, half of them {parts['25%']:.4g} to {parts['75%']:.4g}, "
        f"median {parts['50%']:.4g}"
    )


def _image_sizes(sizes: dict[tuple[int, int], int]) -> str:
    shown = [
        f"{width} by {height} ({count})" if width else f"unknown ({count})"
        for (height, width), count in list(sizes.items())[:3]
    ]
    more = f" and {len(sizes) - 3} other sizes" if len(sizes) > 3 else ""
    return f"images (width by height): {', '.join(shown) or 'none'}{more}"
