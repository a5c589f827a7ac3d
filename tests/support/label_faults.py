"""Faults planted in the labels of a set, and which boxes are where one was planted."""

from typing import NamedTuple

import numpy as np
from hotcoco import primitives
from numpy.typing import NDArray

State = dict[str, NDArray[np.generic]]


class Planted(NamedTuple):
    """The labels that were changed, as they were before."""

    image_ids: NDArray[np.int64]
    boxes_xywh: NDArray[np.float64]


def plant_faults(state: State, seed: int, *, part: float = 0.1) -> tuple[State, Planted]:
    """Return the state of an evaluator with this part of its labels changed.

    A third of them is removed, a third is moved by a quarter to a half of its sides, a third gets another class.
    """
    rng = np.random.default_rng(seed)
    labels = np.flatnonzero(~state["truth_crowd"])
    chosen = rng.choice(labels, round(len(labels) * part), replace=False)
    removed, moved, renamed = np.array_split(chosen, 3)
    boxes, classes = state["truth_boxes_xywh"].copy(), state["truth_class_ids"].copy()
    boxes[moved, :2] += _either_way(rng, len(moved)) * boxes[moved, 2:]
    classes[renamed] = (classes[renamed] + rng.integers(1, len(state["names"]), len(renamed))) % len(state["names"])
    kept = np.setdiff1d(np.arange(len(boxes)), removed)
    changed = state | {"truth_boxes_xywh": boxes, "truth_class_ids": classes}
    changed |= {key: values[kept] for key, values in changed.items() if key.startswith("truth_")}
    return changed, Planted(state["truth_image_ids"][chosen], state["truth_boxes_xywh"][chosen])


def are_planted(planted: Planted, image_ids: NDArray[np.int64], boxes_xywh: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which boxes overlap a changed label, as it was before, by at least 0.5."""
    overlap = primitives.bbox_iou(boxes_xywh, planted.boxes_xywh, [False] * len(planted.boxes_xywh))
    found: NDArray[np.bool_] = ((overlap >= 0.5) & (image_ids[:, None] == planted.image_ids)).any(axis=1)
    return found


def _either_way(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    values: NDArray[np.float64] = rng.choice([-1, 1], (count, 2)) * rng.uniform(0.25, 0.5, (count, 2))
    return values
