"""How much better one detector is than another on the same images, with intervals, and on which images."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core.bootstrap import Rescore, paired_differences
from boxwright.evaluation.coco import CocoEvaluator
from boxwright.evaluation.curves import total_curve
from boxwright.evaluation.errors import HIT, Verdicts, judge
from boxwright.evaluation.resample import match_detections, mean_ap, resample_classes

DRAWS = 400
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The difference of two scores, second minus first, with the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """One of the detectors: its verdicts, its threshold with the best F1, and what it shows at that threshold.

    Attributes:
        verdicts: of its boxes.
        threshold: the score from which a box is shown.
        shown: which detections are.
        found: which truth boxes are found by them.
    """

    verdicts: Verdicts
    threshold: float
    shown: NDArray[np.bool_]
    found: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageChange:
    """What changed in one image from the first detector to the second, in numbers of boxes."""

    image: int
    gained: int
    lost: int
    false_before: int
    false_after: int

    @property
    def balance(self) -> int:
        """How much better the second is: objects won, less false boxes added."""
        return self.gained - self.lost - (self.false_after - self.false_before)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Difference:
    """Two detectors on the same images.

    Attributes:
        ap: how the AP changed.
        per_class: how the AP of each class changed; None where the set has no truth box of it.
        first: the first detector.
        second: the second.
        images: the images that changed, the largest changes first.
    """

    ap: Change
    per_class: dict[str, Change | None]
    first: Side
    second: Side
    images: list[ImageChange]


def compare_detections(
    first: CocoEvaluator, second: CocoEvaluator, *, draws: int = DRAWS, confidence: float = CONFIDENCE
) -> Difference:
    """Return how two detectors differ.

    Args:
        first: an evaluator that has seen all images.
        second: one that has seen the same images and labels.
        draws: how often the images are redrawn for the intervals.
        confidence: how often the interval should hold the true difference.
    """
    sides = (_side(first), _side(second))
    tables = (match_detections(first), match_detections(second))
    names = sides[0].verdicts.names
    values = [_class_values(table) for table in tables]
    before, after = (float(mean_ap(of_classes[None])[0]) for of_classes in values)
    samples = len(sides[0].verdicts.image_ids)
    differences = paired_differences(_scores_of(tables[1]), _scores_of(tables[0]), samples=samples, draws=draws)
    whole, classes = differences[:, 0], differences[:, 1:]
    per_class = {
        name: None if np.isnan(values[0][at]) else _change(values[1][at] - values[0][at], classes[:, at], confidence)
        for at, name in enumerate(names)
    }
    return Difference(
        ap=_change(after - before, whole, confidence),
        per_class=per_class,
        first=sides[0],
        second=sides[1],
        images=_changed_images(*sides),
    )


def _scores_of(table: dict[str, NDArray[Any]]) -> Rescore:
    """Return what scores draws: the AP of the set first, then that of each class."""

    def rescore(weights: NDArray[np.int64]) -> NDArray[np.float64]:
        classes = resample_classes(table, weights)
        return np.column_stack([mean_ap(classes), classes])

    return rescore


def _class_values(table: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    values: NDArray[np.float64] = resample_classes(table, np.ones((1, int(table["images"])), np.int64))[0]
    return values


def _change(value: float, draws: NDArray[np.float64], confidence: float) -> Change:
    """Return a difference with the ends of its interval, which always holds the difference itself."""
    there = draws[~np.isnan(draws)]
    if not len(there):
        return Change(value=float(value), low=float(value), high=float(value))
    low, high = np.quantile(there, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Change(value=float(value), low=min(float(low), float(value)), high=max(float(high), float(value)))


def _side(evaluator: CocoEvaluator) -> Side:
    verdicts = judge(evaluator)
    best = total_curve(verdicts).best
    threshold = 1.0 if best is None else best
    shown = (verdicts.scores >= threshold) & ~verdicts.ignored
    found = np.append(shown, False)[verdicts.found_by]
    return Side(verdicts=verdicts, threshold=threshold, shown=shown, found=found & (verdicts.found_by >= 0))


def _changed_images(first: Side, second: Side) -> list[ImageChange]:
    count = len(first.verdicts.image_ids)
    image = first.verdicts.truth_image

    def per_image(images: NDArray[np.int64], chosen: NDArray[np.bool_]) -> list[int]:
        numbers: list[int] = np.bincount(images[chosen], minlength=count).tolist()
        return numbers

    columns = zip(
        per_image(image, second.found & ~first.found),
        per_image(image, first.found & ~second.found),
        *(per_image(side.verdicts.image, side.shown & (side.verdicts.kind != HIT)) for side in (first, second)),
        strict=True,
    )
    changes = [
        ImageChange(image=at, gained=gained, lost=lost, false_before=before, false_after=after)
        for at, (gained, lost, before, after) in enumerate(columns)
        if gained or lost or before != after
    ]
    return sorted(changes, key=lambda c: (-abs(c.balance), -(c.gained + c.lost), c.image))
