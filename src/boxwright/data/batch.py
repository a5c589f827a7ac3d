"""`Batch`: the samples that one training step takes, finished or pending."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Few different shapes keep compiled losses and allocators happy.
_BOX_STEP = 8


class Position(NamedTuple):
    """A batch's place in a training run: its epoch, and its number in that epoch; both from 0."""

    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Samples of one size.

    Attributes:
        images: uint8 (B, H, W, 3), BGR.
        targets: class, centre x, centre y, width, height in pixels; float32 (B, G, 5), padded with rows of zeros.
        image_ids: ids of the images that the samples start from, int64 (B,).
        position: the batch's place in the training run.
    """

    images: NDArray[np.uint8]
    targets: NDArray[np.float32]
    image_ids: NDArray[np.int64]
    position: Position

    def __len__(self) -> int:
        return len(self.images)


@dataclass(slots=True, eq=False)
class PendingBatch:
    """A batch in the making.

    Attributes:
        position: its place in the training run.
        indices: its images.
        images: where workers write the pixels, uint8 (B, H, W, 3).
        futures: the parts of the batch, in order; each returns the targets of some rows.
    """

    position: Position
    indices: Sequence[int]
    images: NDArray[np.uint8]
    futures: "Sequence[Future[Any]]"


def pad_targets(targets: Sequence[NDArray[np.float32]], max_boxes: int | None) -> tuple[NDArray[np.float32], int]:
    """Return the targets of several images as one array (B, G, 5), and how many boxes were dropped.

    Args:
        targets: class, centre x, centre y, width, height; (N, 5) for each image.
        max_boxes: G; of more boxes the largest are kept. None for as many as there are, in steps of 8.

    Example:
        >>> padded, dropped = pad_targets([np.ones((3, 5), np.float32), np.ones((9, 5), np.float32)], None)
        >>> padded.shape, dropped
        ((2, 16, 5), 0)
    """
    most = max((len(rows) for rows in targets), default=0)
    width = max(-(-most // _BOX_STEP), 1) * _BOX_STEP if max_boxes is None else max_boxes
    padded = np.zeros((len(targets), width, 5), np.float32)
    dropped = 0
    for out, rows in zip(padded, targets, strict=True):
        if len(rows) > width:
            dropped += len(rows) - width
            rows = rows[np.sort(np.argsort(-rows[:, 3] * rows[:, 4], kind="stable")[:width])]
        out[: len(rows)] = rows
    return padded, dropped
