"""From the network's output to boxes: decoding and non-maximum suppression with numpy and OpenCV, no torch."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.core.boxes import cxcywh_to_xyxy
from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.spec import OutputForm

Array = NDArray[np.float32]


@lru_cache(maxsize=32)
def anchor_grid(size_hw: tuple[int, int], strides: tuple[int, ...]) -> tuple[Array, Array]:
    """Return column and row (A, 2) and stride (A, 1) of every output row, stride 8 first; read-only arrays."""
    cells, steps = [], []
    for stride in strides:
        rows, columns = size_hw[0] // stride, size_hw[1] // stride
        y, x = np.mgrid[:rows, :columns]
        cells.append(np.stack((x.ravel(), y.ravel()), axis=1))
        steps.append(np.full((rows * columns, 1), stride))
    grid = np.concatenate(cells).astype(np.float32)
    step = np.concatenate(steps).astype(np.float32)
    grid.flags.writeable = step.flags.writeable = False
    return grid, step


def postprocess(
    output: Array,
    *,
    size_hw: tuple[int, int],
    strides: Sequence[int] = (8, 16, 32),
    form: OutputForm = "raw",
    conf: float = 0.001,
    nms: float = 0.65,
    class_agnostic: bool = False,
) -> tuple[Array, Array, NDArray[np.int64]]:
    """Return boxes (corners in input pixels), scores and class ids of one image, best first.

    Every box whose score (objectness times best class) is at least `conf` takes part in the suppression: there is
    no cap on their number and no time limit.

    Args:
        output: (A, 5 + C), one image's output.
        size_hw: size of the network's input.
        strides: the levels behind the rows.
        form: how far the output already is, see `OutputForm`.
        conf: least score.
        nms: IoU above which the box with the lower score is removed.
        class_agnostic: suppress across classes too.

    Raises:
        UsageError: the output's shape does not fit, or a threshold is not between 0 and 1.
        CheckpointError: the output holds NaN, which must not pass for an image without objects.
    """
    for name, value in (("conf", conf), ("nms", nms)):
        if not 0 <= value <= 1:
            raise UsageError(f"{name}={value!r} must lie between 0 and 1.")
    grid, step = anchor_grid(size_hw, tuple(strides))
    if output.ndim != 2 or len(output) != len(grid) or output.shape[1] < 6:
        raise UsageError(
            f"An output of shape {output.shape!r} does not fit an input of {size_hw!r}: "
            f"it must be ({len(grid)}, 5 + number of classes)."
        )
    objectness = output[:, 4]
    if form == "raw":
        objectness = _sigmoid(objectness)
    _refuse_nan(objectness)
    # A score can't be above its objectness: most rows are out before their classes are looked at.
    rows = np.flatnonzero(objectness >= conf)
    objectness = objectness[rows]
    classes = output[rows, 5:]
    class_ids = classes.argmax(axis=1)
    best = classes[np.arange(len(rows)), class_ids]
    if form == "raw":
        best = _sigmoid(best)
    scores = objectness * best
    _refuse_nan(scores)
    keep = np.flatnonzero(scores >= conf)
    rows, scores, class_ids = rows[keep], scores[keep].astype(np.float32), class_ids[keep].astype(np.int64)
    boxes = output[rows, :4].astype(np.float32)
    if form != "decoded":
        with np.errstate(over="ignore"):  # a wild size becomes infinite and is left out below
            boxes = np.concatenate((boxes[:, :2] + grid[rows], np.exp(boxes[:, 2:])), axis=1) * step[rows]
    boxes = cxcywh_to_xyxy(boxes).astype(np.float32)
    finite = np.isfinite(boxes).all(axis=1)
    if not finite.all():
        _refuse_nan(output[rows, :4])
        boxes, scores, class_ids = boxes[finite], scores[finite], class_ids[finite]
    kept = suppress(boxes, scores, None if class_agnostic else class_ids, nms)
    return boxes[kept], scores[kept], class_ids[kept]


def suppress(
    boxes_xyxy: Array, scores: Array, class_ids: NDArray[np.int64] | None, threshold: float
) -> NDArray[np.int64]:
    """Return the indices that survive non-maximum suppression, best score first.

    With `class_ids` only boxes of one class suppress each other; without, all do.
    """
    if len(scores) == 0:
        return np.zeros(0, np.int64)
    rects = boxes_xyxy.astype(np.float64)
    rects[:, 2:] -= rects[:, :2]
    groups = np.zeros(len(scores), np.int32) if class_ids is None else class_ids.astype(np.int32)
    # The stubs ask for sequences; OpenCV takes arrays as well, without a Python object a number.
    nms: Any = cv2.dnn.NMSBoxesBatched
    kept = nms(rects, scores, groups, -1.0, threshold)
    index = np.asarray(kept, dtype=np.int64).reshape(-1)
    return index[np.argsort(-scores[index], kind="stable")]


def _refuse_nan(values: Array) -> None:
    if np.isnan(values).any():
        raise CheckpointError(
            "The model's output is not a number (NaN). Its weights are damaged, or its precision is too low: use the "
            "original weights, or precision 32."
        )


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return (1 / (1 + np.exp(-x))).astype(np.float32)
