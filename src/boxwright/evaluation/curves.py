"""Precision, recall and F1 over the score threshold, and the confusion matrix, from judged boxes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boxwright.evaluation.errors import HIT, MATCH_IOU, Floats, Ints, Verdicts

POINTS = 100
_NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """Precision and recall at falling score thresholds, at an IoU of 0.5.

    Attributes:
        thresholds: scores, falling; at most 100, spread evenly over the hits, and the best one.
        precision: of the detections with at least that score.
        recall: likewise.
        best: the threshold with the highest F1; None without a hit.
        best_f1: that F1.
    """

    thresholds: Floats
    precision: Floats
    recall: Floats
    best: float | None
    best_f1: float

    @property
    def f1(self) -> Floats:
        """F1 at each threshold."""
        return _f1(self.precision, self.recall)


def class_curves(verdicts: Verdicts) -> list[Curve]:
    """Return the curve of each class."""
    v = verdicts
    to_find = np.bincount(v.truth_class_ids, minlength=len(v.names))
    order = np.lexsort((-v.scores, v.class_ids))
    order = order[~v.ignored[order]]
    edges = np.searchsorted(v.class_ids[order], np.arange(len(v.names) + 1))
    return [
        _curve(v.scores[some], v.kind[some] == HIT, int(to_find[class_id]))
        for class_id in range(len(v.names))
        for some in [order[edges[class_id] : edges[class_id + 1]]]
    ]


def total_curve(verdicts: Verdicts) -> Curve:
    """Return the curve of all boxes together, whatever their class."""
    v = verdicts
    some = np.argsort(-v.scores, kind="stable")
    some = some[~v.ignored[some]]
    return _curve(v.scores[some], v.kind[some] == HIT, len(v.truth_class_ids))


def confusion_matrix(verdicts: Verdicts, *, min_score: float) -> Ints:
    """Return how often each class was taken for each other, (classes + 1, classes + 1): rows are the truth.

    The last row and column are the background. Boxes that overlap by more than 0.5 are matched one to one: first those
    of the same class, then the others, each by falling overlap; crowds and what lies in them are left out.

    Args:
        verdicts: the judged boxes.
        min_score: detections below it are left out.
    """
    v = verdicts
    shown = (v.scores >= min_score) & ~v.ignored
    near = (v.pairs.iou > MATCH_IOU) & shown[v.pairs.detection]
    detection, truth, iou = v.pairs.detection[near], v.pairs.truth[near], v.pairs.iou[near]
    differs = v.class_ids[detection] != v.truth_class_ids[truth]
    order = np.lexsort((truth, detection, -iou, differs))
    partner, taken = np.full(len(v.truth_class_ids), _NONE), np.zeros(len(v.scores), np.bool_)
    for d, t in zip(detection[order].tolist(), truth[order].tolist(), strict=True):
        if partner[t] == _NONE and not taken[d]:
            partner[t], taken[d] = d, True
    background = len(v.names)
    matrix = np.zeros((background + 1, background + 1), np.int64)
    columns = np.where(partner == _NONE, background, np.append(v.class_ids, background)[partner])
    np.add.at(matrix, (v.truth_class_ids, columns), 1)
    np.add.at(matrix[background], v.class_ids[shown & ~taken], 1)
    return matrix


def _curve(scores: Floats, hit: NDArray[np.bool_], to_find: int) -> Curve:
    """Return the curve of detections sorted by falling score."""
    right = np.cumsum(hit)
    # A threshold takes all detections of its score, so only the last of equal scores is a point.
    points = np.flatnonzero(np.append(scores[1:] < scores[:-1], True)[: len(scores)])
    precision = right[points] / (points + 1.0)
    recall = right[points] / max(to_find, 1)
    f1 = _f1(precision, recall)
    found = bool(hit.any()) and to_find > 0
    best = int(f1.argmax()) if found else 0
    if len(points) > POINTS:
        steps = np.searchsorted(recall, np.linspace(0, recall[-1], POINTS - 2))
        chosen = np.unique(np.concatenate([[0, best, len(points) - 1], steps.clip(0, len(points) - 1)]))
    else:
        chosen = np.arange(len(points))
    return Curve(
        thresholds=scores[points][chosen],
        precision=precision[chosen],
        recall=recall[chosen],
        best=float(scores[points][best]) if found else None,
        best_f1=float(f1[best]) if found else 0.0,
    )


def _f1(precision: Floats, recall: Floats) -> Floats:
    values: Floats = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return values
