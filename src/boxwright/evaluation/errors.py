"""What each detection and each truth box turned out to be, and what each error costs in AP: TIDE (Bolya et al. 2020).

The costs equal those of the authors' tidecv. Those of hotcoco's `tide_errors` do not: on 300 images of COCO it gives
9.4 AP points for missed objects, where tidecv gives 9.8.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from hotcoco import metrics, primitives
from numpy.typing import NDArray

from boxwright.evaluation.coco import CocoEvaluator

HIT, CLASS, LOCATION, BOTH, DUPLICATE, BACKGROUND = range(6)
KINDS = ("hit", "class", "location", "both", "duplicate", "background")
"""The name of each kind of detection."""

MATCH_IOU = 0.5
TOUCH_IOU = 0.1
PER_IMAGE = 100
_NONE = -1
_RECALLS = np.arange(101) / 100  # the last bit of some differs from COCO's `linspace`
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """Detections and truth boxes of the same image that overlap by at least `TOUCH_IOU`.

    They are sorted by detection, then by falling overlap, then by truth box.
    """

    detection: Ints
    truth: Ints
    iou: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verdicts:
    """The judged boxes of a set at an IoU of 0.5. Images are numbered in the order of their ids.

    Attributes:
        image_ids: the id of each image.
        names: class names.
        image: the image of each detection; at most 100 per image, best scores first in each image.
        boxes_xywh: of each detection.
        scores: of each detection.
        class_ids: of each detection.
        kind: index into `KINDS`.
        truth: the truth box that a detection hits, names wrongly, misplaces or repeats; -1 for the others.
        ignored: whether a detection lies in a crowd of its class, and is neither right nor wrong.
        truth_image: the image of each truth box; crowds are left out.
        truth_boxes_xywh: of each truth box.
        truth_class_ids: of each truth box.
        found_by: the detection that hits a truth box; -1 if there is none.
        missed: whether no detection hits a truth box, misplaces it or names it wrongly.
        pairs: what overlaps.
    """

    image_ids: Ints
    names: tuple[str, ...]
    image: Ints
    boxes_xywh: Floats
    scores: Floats
    class_ids: Ints
    kind: Ints
    truth: Ints
    ignored: NDArray[np.bool_]
    truth_image: Ints
    truth_boxes_xywh: Floats
    truth_class_ids: Ints
    found_by: Ints
    missed: NDArray[np.bool_]
    pairs: Pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What each kind of error costs: how much AP at IoU 0.5 would rise if all errors of that kind were corrected.

    Attributes:
        ap: the AP at IoU 0.5, with at most 100 detections per image.
        cost: by kind of error, with `missed`; and `all_false` and `all_missed`, for all wrong detections and all boxes
            that no detection hits.
        count: how many errors there are of each kind.
    """

    ap: float
    cost: dict[str, float]
    count: dict[str, int]


def judge(evaluator: CocoEvaluator) -> Verdicts:
    """Return what each detection and each truth box turned out to be.

    Args:
        evaluator: one that has seen all images.
    """
    state = evaluator.state()
    image_ids = np.unique(state["image_ids"])
    chosen, image = _best_of_each_image(np.searchsorted(image_ids, state["detection_image_ids"]), state)
    boxes, classes = state["detection_boxes_xywh"][chosen], state["detection_class_ids"][chosen]
    crowd = state["truth_crowd"]
    truth_image = np.searchsorted(image_ids, state["truth_image_ids"])
    by_image = np.argsort(truth_image, kind="stable")
    single, crowds = by_image[~crowd[by_image]], by_image[crowd[by_image]]
    truth_classes = state["truth_class_ids"][single]
    pairs = _overlaps(len(image_ids), (image, boxes), (truth_image[single], state["truth_boxes_xywh"][single]))
    inside = _overlaps(
        len(image_ids), (image, boxes), (truth_image[crowds], state["truth_boxes_xywh"][crowds]), crowd=True
    )
    hit, found_by = _match(pairs, classes, truth_classes)
    in_crowd = inside.detection[
        (inside.iou > MATCH_IOU) & (classes[inside.detection] == state["truth_class_ids"][crowds][inside.truth])
    ]
    ignored = np.zeros(len(chosen), np.bool_)
    ignored[in_crowd] = True
    ignored &= hit == _NONE
    kind, truth = _classify(pairs, classes, truth_classes, hit, found_by)
    correctable = np.isin(kind, (CLASS, LOCATION))
    touched = np.zeros(len(truth_classes), np.bool_)
    touched[truth[correctable]] = True
    return Verdicts(
        image_ids=image_ids,
        names=tuple(str(name) for name in state["names"]),
        image=image,
        boxes_xywh=boxes,
        scores=state["detection_scores"][chosen],
        class_ids=classes,
        kind=kind,
        truth=truth,
        ignored=ignored,
        truth_image=truth_image[single],
        truth_boxes_xywh=state["truth_boxes_xywh"][single],
        truth_class_ids=truth_classes,
        found_by=found_by,
        missed=(found_by == _NONE) & ~touched,
        pairs=pairs,
    )


def price(verdicts: Verdicts) -> Costs:
    """Return what each kind of error costs in AP."""
    v = verdicts
    counted = ~v.ignored
    hit = (v.kind == HIT) & counted
    to_find = np.bincount(v.truth_class_ids, minlength=len(v.names))
    judged = np.flatnonzero(to_find).tolist()
    own = _rank(v.class_ids, v.scores)

    def mean_ap(
        hit: NDArray[np.bool_], counted: NDArray[np.bool_], to_find: Ints = to_find, ranked: _Ranked = own
    ) -> float:
        return _mean_ap(ranked, hit, counted, to_find, judged)

    base = mean_ap(hit, counted)
    best = _best_for_each_truth(v)

    def without(kind: int) -> float:
        return mean_ap(hit, counted & (v.kind != kind))

    def corrected(kind: int) -> float:
        right = best & (v.kind == kind)
        kept = right | (counted & (v.kind != kind))
        if kind != CLASS or not right.any():
            return mean_ap(hit | right, kept)
        classes = np.where(right, v.truth_class_ids[v.truth], v.class_ids)
        return mean_ap(hit | right, kept, ranked=_rank(classes, v.scores))

    unfound = np.bincount(v.truth_class_ids[v.found_by == _NONE], minlength=len(v.names))
    missed = np.bincount(v.truth_class_ids[v.missed], minlength=len(v.names))
    fixes: dict[str, Callable[[], float]] = {
        "class": lambda: corrected(CLASS),
        "location": lambda: corrected(LOCATION),
        "both": lambda: without(BOTH),
        "duplicate": lambda: without(DUPLICATE),
        "background": lambda: without(BACKGROUND),
        "missed": lambda: mean_ap(hit, counted, to_find - missed),
        "all_false": lambda: mean_ap(hit, counted, ranked=_rank(v.class_ids, hit.astype(np.float64))),
        "all_missed": lambda: mean_ap(hit, counted, to_find - unfound),
    }
    count = {name: int((v.kind == index).sum()) for index, name in enumerate(KINDS) if index != HIT}
    return Costs(
        ap=base,
        cost={name: max(fix() - base, 0.0) for name, fix in fixes.items()},
        count=count
        | {
            "missed": int(v.missed.sum()),
            "all_false": int((counted & ~hit).sum()),
            "all_missed": int((v.found_by == _NONE).sum()),
        },
    )


class _Ranked(NamedTuple):
    """Detections with the order that sorts them by class and falling score."""

    order: Ints
    classes: Ints
    scores: Floats


def _rank(classes: Ints, scores: Floats) -> _Ranked:
    return _Ranked(np.lexsort((-scores, classes)), classes, scores)


def _mean_ap(
    ranked: _Ranked, hit: NDArray[np.bool_], counted: NDArray[np.bool_], to_find: Ints, judged: list[int]
) -> float:
    """Return AP over some classes; as in TIDE, one with nothing left to find counts as 0."""
    order = ranked.order[counted[ranked.order]]
    edges = np.searchsorted(ranked.classes[order], np.arange(len(to_find) + 1))
    values = [
        metrics.average_precision(ranked.scores[some], hit[some], int(to_find[class_id]), rec_thrs=_RECALLS)
        for class_id in judged
        for some in [order[edges[class_id] : edges[class_id + 1]]]
    ]
    return float(np.mean(values)) if values else 0.0


def _best_of_each_image(image: Ints, state: dict[str, NDArray[np.generic]]) -> tuple[Ints, Ints]:
    """Return the detections that count, by image and score, and the image of each."""
    order = np.lexsort((-state["detection_scores"].astype(np.float64), image))
    image = image[order]
    start = np.searchsorted(image, image)
    kept = np.arange(len(order)) - start < PER_IMAGE
    return order[kept], image[kept]


def _overlaps(
    images: int, detections: tuple[Ints, Floats], truths: tuple[Ints, Floats], *, crowd: bool = False
) -> Pairs:
    """Return what overlaps by at least `TOUCH_IOU`; both sides are sorted by image."""
    (of_detection, boxes), (of_truth, truth_boxes) = detections, truths
    edges = np.arange(images + 1)
    detection_edges, truth_edges = np.searchsorted(of_detection, edges), np.searchsorted(of_truth, edges)
    found: list[tuple[Ints, Ints, Floats]] = []
    for at in np.flatnonzero((np.diff(detection_edges) > 0) & (np.diff(truth_edges) > 0)).tolist():
        first, last = detection_edges[at], detection_edges[at + 1]
        first_truth, last_truth = truth_edges[at], truth_edges[at + 1]
        flags = np.full(last_truth - first_truth, crowd)
        iou = primitives.bbox_iou(boxes[first:last], truth_boxes[first_truth:last_truth], flags)
        rows, columns = np.nonzero(iou >= TOUCH_IOU)
        found.append((rows + first, columns + first_truth, iou[rows, columns]))
    empty = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    detection, truth, iou = (np.concatenate(parts) for parts in zip(empty, *found, strict=True))
    order = np.lexsort((truth, -iou, detection))
    return Pairs(detection=detection[order], truth=truth[order], iou=iou[order])


def _match(pairs: Pairs, classes: Ints, truth_classes: Ints) -> tuple[Ints, Ints]:
    """Return the truth box that each detection hits, and the detection that hits each truth box; -1 for none.

    Within an image the best detection chooses first.
    """
    hit, found_by = np.full(len(classes), _NONE), np.full(len(truth_classes), _NONE)
    near = (pairs.iou >= MATCH_IOU) & (classes[pairs.detection] == truth_classes[pairs.truth])
    for d, t in zip(pairs.detection[near].tolist(), pairs.truth[near].tolist(), strict=True):
        if hit[d] == _NONE and found_by[t] == _NONE:
            hit[d], found_by[t] = t, d
    return hit, found_by


def _classify(pairs: Pairs, classes: Ints, truth_classes: Ints, hit: Ints, found_by: Ints) -> tuple[Ints, Ints]:
    """Return the kind of each detection and the truth box that it concerns."""
    same = classes[pairs.detection] == truth_classes[pairs.truth]
    own, own_iou = _nearest(pairs, same, len(classes))
    other, other_iou = _nearest(pairs, ~same, len(classes))
    taken, taken_iou = _nearest(pairs, same & (found_by[pairs.truth] != _NONE), len(classes))
    tests = [
        hit != _NONE,
        (own_iou >= TOUCH_IOU) & (own_iou <= MATCH_IOU),
        other_iou >= MATCH_IOU,
        taken_iou >= MATCH_IOU,
        np.maximum(own_iou, other_iou) <= TOUCH_IOU,
    ]
    kind = np.select(tests, [HIT, LOCATION, CLASS, DUPLICATE, BACKGROUND], BOTH)
    truth = np.select(tests[:4], [hit, own, other, taken], _NONE)
    return kind, truth


def _nearest(pairs: Pairs, chosen: NDArray[np.bool_], detections: int) -> tuple[Ints, Floats]:
    """Return the truth box that each detection overlaps most among the chosen pairs, and by how much."""
    some = np.flatnonzero(chosen)
    of = pairs.detection[some]
    first = some[np.append(True, of[1:] != of[:-1])[: len(some)]]
    nearest, overlap = np.full(detections, _NONE), np.zeros(detections)
    nearest[pairs.detection[first]], overlap[pairs.detection[first]] = pairs.truth[first], pairs.iou[first]
    return nearest, overlap


def _best_for_each_truth(v: Verdicts) -> NDArray[np.bool_]:
    """Return which wrong detections would hit an unfound truth box once corrected: one for each box, the best."""
    some = np.flatnonzero(np.isin(v.kind, (CLASS, LOCATION)))
    some = some[v.found_by[v.truth[some]] == _NONE]
    order = some[np.lexsort((some, -v.scores[some], v.truth[some]))]
    _, at = np.unique(v.truth[order], return_index=True)
    best = np.zeros(len(v.kind), np.bool_)
    best[order[at]] = True
    return best
