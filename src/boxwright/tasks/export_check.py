"""Compare an exported file with the original, on the user's images or on drawn scenes."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import ConversionError, UsageError
from boxwright.core.spec import Spec
from boxwright.detector.postprocess import postprocess
from boxwright.runtimes.base import Session
from boxwright.runtimes.parity import distance
from boxwright.runtimes.source import Source
from boxwright.tasks.images import ImageInputs
from boxwright.tasks.models import ModelOptions, open_model

STEP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One comparison with the original: the distance of boxes, objectness and classes (see `parity.distance`)."""

    batch: int
    size_hw: tuple[int, int]
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppression:
    """Non-maximum suppression inside the file, with the maximum number of boxes."""

    conf: float = 0.25
    nms: float = 0.45
    max_boxes: int = 300

    def __post_init__(self) -> None:
        for name, value in (("conf", self.conf), ("nms", self.nms)):
            if not 0 <= value <= 1:
                raise UsageError(f"{name}={value!r} must lie between 0 and 1.")
        if self.max_boxes < 1:
            raise UsageError(f"max_boxes={self.max_boxes!r} must be at least 1.")


def tried_sizes(spec: Spec, *, dynamic: bool) -> list[Spec]:
    """Return the spec at each size to compare: the usual one, and others where the file takes any."""
    if not dynamic:
        return [spec]
    height, width = spec.size_hw
    others = [(height + STEP, width + 2 * STEP), (max(STEP, height // 2 // STEP * STEP), width)]
    return [spec, *(replace(spec, size_hw=size_hw) for size_hw in others)]


def compare(
    path: Path, source: Source, specs: Sequence[Spec], images: ImageInputs, batch: int | None
) -> list[Comparison]:
    """Return how far a written file or folder is from the original, at each size, for one image and for several."""
    found = []
    for spec in specs:
        with closing(_open(path, spec)) as session:
            for count in sorted({1, batch or 3}):
                given = images.stack(0, count, spec)
                wanted = np.concatenate([source.run([given[i : i + 1]])[0] for i in range(count)])
                away = distance(_parts(session(given)), _parts(wanted))
                found.append(Comparison(batch=count, size_hw=spec.size_hw, distance=away))
    return found


def compare_suppression(
    decoded: Path, suppressed: Path, specs: Sequence[Spec], keep: Suppression, images: ImageInputs
) -> None:
    """Compare the boxes that the suppression inside a file leaves with those that our own leaves.

    Raises:
        ConversionError: they differ.
    """
    for spec in specs:
        form: dict[str, Any] = {"size_hw": spec.size_hw, "strides": spec.strides, "form": "decoded", "conf": keep.conf}
        with closing(_open(decoded, spec)) as before, closing(_open(suppressed, spec)) as after:
            given = images.stack(0, 2, spec)
            for all_boxes, left in zip(before(given), after(given), strict=True):
                boxes, scores, classes = postprocess(all_boxes, nms=keep.nms, **form)
                above = min(keep.max_boxes, int((scores > 0).sum()))  # the file pads with scores of 0
                expected = [a[:above] for a in (boxes, scores, classes)]
                found = postprocess(left, nms=1.0, **form)
                if not _agree(expected, found):
                    raise ConversionError(
                        f"The suppression in the file leaves {len(found[1])} boxes at {spec.size_hw!r}, which are not "
                        f"the {len(expected[1])} expected. Nothing was written."
                    )


def _agree(expected: Sequence[NDArray[Any]], found: Sequence[NDArray[Any]]) -> bool:
    """Return whether boxes, scores and classes agree, except for one in a hundred.

    Two boxes whose overlap equals the threshold may go either way.
    """
    boxes, scores, classes = (
        np.abs(a[:, None].astype(np.float64) - b[None].astype(np.float64)) for a, b in zip(expected, found, strict=True)
    )
    same = (boxes.max(axis=2, initial=0) < 0.1) & (scores < 1e-3) & (classes == 0)
    alone = int((~same.any(axis=1)).sum() + (~same.any(axis=0)).sum())
    return alone <= (len(expected[1]) + len(found[1])) // 100


def _open(path: Path, spec: Spec) -> Session:
    return open_model(path, ModelOptions(size_hw=spec.size_hw))


def _parts(output: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Return boxes, objectness and classes separately: boxes in pixels would hide any error of the scores."""
    return [output[..., :4], output[..., 4:5], output[..., 5:]]
