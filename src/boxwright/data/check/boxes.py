"""Rules about boxes and classes: arrays in, findings out."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from boxwright.core.boxes import area_xyxy, clip_xyxy
from boxwright.data.check.report import Finding
from boxwright.data.records import Records

MOST_BOXES = 120
"""Images with more boxes get a warning: YOLOX learns from at most this many per image."""

_SLACK_PX = 1.0
"""A box may extend over the edge by this much: labels are rounded, and some tools count pixels from 1."""

_SMALLEST_PX = 1.0


def check_boxes(records: Records, sizes_hw: NDArray[np.int32]) -> Iterator[Finding]:
    """Yield what is wrong with boxes; `sizes_hw` (N, 2) are the images' true sizes, (0, 0) if unknown."""
    boxes = records.boxes_xyxy
    owner = np.repeat(np.arange(len(records)), np.diff(records.offsets))
    finite = _all_of(np.isfinite(boxes))
    # A non-finite box is reported once, and must not disturb the other rules.
    safe = np.where(finite[:, None], boxes, np.array([0, 0, 9, 9], np.float32))
    side = safe[:, 2:] - safe[:, :2]

    def report(rule: str, rows: NDArray[np.bool_], words: Callable[[int], str]) -> Iterator[Finding]:
        for row in np.flatnonzero(rows).tolist():
            i = int(owner[row])
            corners = ", ".join(f"{value:.6g}" for value in boxes[row].tolist())
            yield Finding(
                rule=rule,
                image=records.relative_path(i),
                index=i,
                box=row - int(records.offsets[i]),
                message=f"the {records.names[records.class_ids[row]]!r} at ({corners}) {words(row)}.",
            )

    def extent(row: int) -> str:
        return f"is {side[row, 0]:.3g} by {side[row, 1]:.3g} pixels"

    yield from report("non-finite", ~finite, lambda _: "has corners that are not finite numbers")
    solid = _all_of(side > 0)
    yield from report("degenerate-box", ~solid, extent)
    yield from report("tiny-box", solid & ~_all_of(side >= _SMALLEST_PX), extent)

    size = sizes_hw[owner]
    known = finite & solid & _all_of(size > 0)
    limit = np.concatenate((size[:, ::-1], size[:, ::-1]), axis=1).astype(np.float32)
    inside = safe.clip(0, limit)
    outside = known & (area_xyxy(inside) <= 0)
    over = np.abs(safe - inside).max(axis=1, initial=0)

    def frame(row: int) -> str:
        return f"of the image, {size[row, 1]} by {size[row, 0]} pixels"

    yield from report("box-outside", outside, lambda row: f"is outside {frame(row)}")
    sticking = known & ~outside & (over > _SLACK_PX)
    yield from report("box-over-edge", sticking, lambda row: f"sticks {over[row]:.3g} pixels out {frame(row)}")
    yield from report("duplicate-box", _repeated(owner, records), lambda _: "repeats an earlier box of the same class")


def check_counts(records: Records) -> Iterator[Finding]:
    """Yield what is odd about the number of boxes: too many in an image, none of a class."""
    counts = np.diff(records.offsets)
    for i in np.flatnonzero(counts > MOST_BOXES).tolist():
        yield Finding(
            rule="many-boxes",
            image=records.relative_path(i),
            index=i,
            message=f"{counts[i]} boxes; training uses at most {MOST_BOXES} per image.",
        )
    used = np.bincount(records.class_ids, minlength=len(records.names))
    for class_id in np.flatnonzero(used == 0).tolist():
        yield Finding(rule="unused-class", image="", message=f"The class {records.names[class_id]!r} has no box.")


def fits(boxes_xyxy: NDArray[np.float32], size_hw: tuple[int, int]) -> bool:
    """Return whether boxes lie inside an image of this size, apart from the usual slack.

    Example:
        >>> fits(np.array([[0, 0, 60.5, 40]], np.float32), (40, 60)), fits(np.array([[0, 0, 60, 50]]), (40, 60))
        (True, False)
    """
    return bool((np.abs(boxes_xyxy - clip_xyxy(boxes_xyxy, size_hw)) <= _SLACK_PX).all())


def _repeated(owner: NDArray[np.int64], records: Records) -> NDArray[np.bool_]:
    """Return which boxes repeat an earlier one of the same image: the same corners and class."""
    rows = np.column_stack((owner, records.class_ids, records.boxes_xyxy)).astype(np.float64)
    # A stable sort: of equal rows the first in the file stays first.
    order = np.lexsort(rows.T[::-1])
    same = _all_of(rows[order][1:] == rows[order][:-1])
    repeated = np.zeros(len(rows), np.bool_)
    repeated[order[1:][same]] = True
    return repeated


def _all_of(rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for each row whether all of it is true."""
    return np.asarray(rows.all(axis=1), np.bool_)
