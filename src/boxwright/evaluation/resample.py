"""AP of bootstrap draws of the same images: boxes are matched once, each draw only recounts."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.evaluation.coco import CocoEvaluator, make_engine

_RECALLS = np.linspace(0.0, 1.0, 101)
_IOUS = 10
_HIT, _MISS, _NEITHER = 1, 0, 2
VALUES_AT_ONCE = 4_000_000  # of one array, so that memory stays small on large sets


def match_detections(evaluator: CocoEvaluator) -> dict[str, NDArray[Any]]:
    """Return whether each detection is a hit, a miss or ignored, as plain arrays for `resample_ap`.

    A detection's fate depends on its own image alone, so it is the same in any draw of images.

    Args:
        evaluator: one that has seen all images.
    """
    state = evaluator.state()
    images = np.unique(state["image_ids"])
    truth_image = np.searchsorted(images, state["truth_image_ids"])
    engine = make_engine(state)
    engine.params.max_dets = [int(state["max_detections"][-1])]
    engine.params.area_rng = [engine.params.area_rng[0]]
    engine.params.area_rng_lbl = [engine.params.area_rng_lbl[0]]
    engine.evaluate()
    found: list[tuple[int, int, list[float], NDArray[np.uint8]]] = []
    for entry in engine.eval_imgs:
        if entry is not None and entry["dtScores"]:
            fate = np.where(np.array(entry["dtMatched"]), _HIT, _MISS)
            fate[np.array(entry["dtIgnore"], bool)] = _NEITHER
            found.append((entry["image_id"], entry["category_id"], entry["dtScores"], fate.T.astype(np.uint8)))
    found.sort(key=lambda f: (f[1], f[0]))
    counts = [len(scores) for _, _, scores, _ in found]
    scores = np.array([s for f in found for s in f[2]])
    classes = np.repeat(np.array([f[1] for f in found], np.int64), counts)
    order = np.lexsort((-scores, classes))  # keeps the order of images among equal scores, as COCO does
    to_find = ~state["truth_crowd"]
    return {
        "images": np.array(len(images)),
        "classes": np.array(len(state["names"])),
        "image": np.repeat(np.array([f[0] for f in found], np.int32), counts)[order],
        "class": classes[order].astype(np.int32),
        "fate": (np.concatenate([f[3] for f in found]) if found else np.zeros((0, _IOUS), np.uint8))[order],
        "truth_image": truth_image[to_find].astype(np.int32),
        "truth_class": state["truth_class_ids"][to_find].astype(np.int32),
    }


def resample_ap(table: Mapping[str, NDArray[Any]], weights: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the AP of each draw: COCO's AP of a set that holds each image as often as its weight.

    Args:
        table: from `match_detections`.
        weights: (draws, images), images in the order of their ids.
    """
    return mean_ap(resample_classes(table, weights))


def mean_ap(classes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the AP of each draw from that of its classes, (draws, classes); 0 where no class has one."""
    there = ~np.isnan(classes)
    scores: NDArray[np.float64] = np.where(there, classes, 0).sum(axis=1) / np.maximum(there.sum(axis=1), 1)
    return scores


def resample_classes(table: Mapping[str, NDArray[Any]], weights: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the AP of each class in each draw, (draws, classes); NaN where a draw has no truth box of a class.

    Args:
        table: from `match_detections`.
        weights: (draws, images), images in the order of their ids.
    """
    scores = np.full((len(weights), int(table["classes"])), np.nan)
    for class_id in range(int(table["classes"])):
        to_find = weights[:, table["truth_image"][table["truth_class"] == class_id]].sum(axis=1)
        if not to_find.any():
            continue
        start, end = np.searchsorted(table["class"], [class_id, class_id + 1])
        image, fate = table["image"][start:end], table["fate"][start:end]
        step = max(1, VALUES_AT_ONCE // max(len(image), 1))
        for first in range(0, len(weights), step):
            some = slice(first, first + step)
            found = _class_ap(weights[some][:, image], fate, np.maximum(to_find[some], 1))
            scores[some, class_id] = np.where(to_find[some] > 0, found, np.nan)
    return scores


def _class_ap(weights: NDArray[np.int64], fate: NDArray[np.uint8], to_find: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a class's AP over all IoU thresholds, for each draw."""
    total = np.zeros(len(weights))
    for iou in range(fate.shape[1]):
        hits = np.flatnonzero(fate[:, iou] == _HIT)
        if not len(hits):
            continue
        kind = fate[: hits[-1] + 1, iou]
        some = weights[:, : len(kind)]
        right = np.cumsum(some * (kind == _HIT), axis=1)[:, hits]
        wrong = np.cumsum(some * (kind == _MISS), axis=1)[:, hits]
        precision = right / (right + wrong + np.spacing(1))
        best_after = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        # How many of the 101 recalls are reached first at each hit; precision is read off there.
        reached = np.searchsorted(_RECALLS, right / to_find[:, None], side="right")
        new = np.diff(reached, axis=1, prepend=0)
        total += (new * best_after).sum(axis=1) / len(_RECALLS)
    mean: NDArray[np.float64] = total / fate.shape[1]
    return mean
