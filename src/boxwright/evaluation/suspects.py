"""Truth boxes that are probably labelled wrongly: where a confident detection or another truth box contradicts them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from hotcoco import primitives

from boxwright.evaluation.errors import BACKGROUND, CLASS, LOCATION, Floats, Ints, Verdicts

Fault = Literal["missing", "shifted", "wrong class", "double"]
LOWEST_SCORE = 0.3
SHIFTED_SHAPE = 0.7
SAME_IOU = 0.5
DOUBLE_IOU = 0.85
MOST = 1000
_NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A probable fault of the labels.

    Attributes:
        fault: the kind of fault.
        image: number of the image in the verdicts.
        detection: the detection that contradicts the labels; -1 for a double box.
        truth: the box in question; -1 where one is missing.
        other: the truth box that a double box repeats; else -1.
        confidence: from 0 to 1, to sort by: the detection's score, for a shifted box together with how well both shapes
            agree; or the overlap of the two truth boxes.
    """

    fault: Fault
    image: int
    detection: int = _NONE
    truth: int = _NONE
    other: int = _NONE
    confidence: float


def find_suspects(verdicts: Verdicts, *, lowest_score: float = LOWEST_SCORE) -> list[Suspect]:
    """Return probable faults of the labels, the most confident first: at most one for each object, and 1000.

    Args:
        verdicts: of a detector that was not trained on these labels.
        lowest_score: detections below this score contradict nothing.
    """
    v = verdicts
    confident = (v.scores >= lowest_score) & ~v.ignored
    unfound = np.append(v.found_by == _NONE, False)[v.truth]
    # A box that was moved keeps its shape. Detectors that find a part of an object, or several as one, do not.
    shape = _shape_overlap(v)
    shifted = confident & unfound & (v.kind == LOCATION) & (shape >= SHIFTED_SHAPE)
    confidence = np.where(shifted, 1 - (1 - v.scores) * (1 - shape), v.scores)
    chosen: list[tuple[Fault, Ints]] = [
        ("missing", np.flatnonzero(confident & (v.kind == BACKGROUND))),
        ("shifted", np.flatnonzero(shifted)),
        ("wrong class", np.flatnonzero(confident & unfound & (v.kind == CLASS))),
    ]
    # Lists are built for the best only: a bad detector contradicts most labels.
    found = [
        Suspect(
            fault=fault,
            image=int(v.image[at]),
            detection=at,
            truth=int(v.truth[at]),
            confidence=float(confidence[at]),
        )
        for fault, some in chosen
        for at in some[np.argsort(-confidence[some], kind="stable")[:MOST]].tolist()
    ]
    return _one_for_each_object(v, sorted(found + _doubles(v), key=lambda suspect: -suspect.confidence)[:MOST])


def _shape_overlap(v: Verdicts) -> Floats:
    """Return how much each detection would overlap the truth box that it concerns if both had one centre."""
    found, truth = v.boxes_xywh[:, 2:], np.append(v.truth_boxes_xywh[:, 2:], [[0, 0]], axis=0)[v.truth]
    both = np.minimum(found, truth).prod(axis=1)
    overlap: Floats = both / np.maximum(found.prod(axis=1) + truth.prod(axis=1) - both, 1e-9)
    return overlap


def _doubles(v: Verdicts) -> list[Suspect]:
    edges = np.searchsorted(v.truth_image, np.arange(len(v.image_ids) + 1))
    found = []
    for image in np.flatnonzero(np.diff(edges) > 1).tolist():
        boxes = v.truth_boxes_xywh[edges[image] : edges[image + 1]]
        overlap = np.triu(primitives.bbox_iou(boxes, boxes, np.zeros(len(boxes), np.bool_)), k=1)
        classes = v.truth_class_ids[edges[image] : edges[image + 1]]
        for first, second in np.argwhere((overlap >= DOUBLE_IOU) & (classes[:, None] == classes)).tolist():
            found.append(
                Suspect(
                    fault="double",
                    image=image,
                    truth=int(edges[image]) + second,
                    other=int(edges[image]) + first,
                    confidence=float(overlap[first, second]),
                )
            )
    return found


def _one_for_each_object(v: Verdicts, ordered: list[Suspect]) -> list[Suspect]:
    """Return the suspects without those that repeat a better one."""
    kept: list[Suspect] = []
    truths: set[int] = set()
    boxes: dict[int, list[Floats]] = {}
    for suspect in ordered:
        if suspect.truth != _NONE:
            if suspect.truth in truths:
                continue
            truths.add(suspect.truth)
        if suspect.detection != _NONE:
            box = v.boxes_xywh[suspect.detection]
            others = boxes.setdefault(suspect.image, [])
            if others and primitives.bbox_iou(box[None], np.array(others), [False] * len(others)).max() >= SAME_IOU:
                continue
            others.append(box)
        kept.append(suspect)
    return kept
