"""Comparing an exported file with the original, on the user's pictures or on drawn ones."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import ConversionError, DataError, UsageError
from boxwright.core.log import get_logger
from boxwright.core.signature import Array
from boxwright.core.spec import Spec
from boxwright.data.formats import read_records
from boxwright.data.synthetic import draw_scene
from boxwright.detector.postprocess import postprocess
from boxwright.runtimes.base import Session
from boxwright.runtimes.parity import distance
from boxwright.runtimes.source import Source
from boxwright.tasks.models import ModelOptions, open_model
from boxwright.vision.decode import list_images, read_image
from boxwright.vision.letterbox import letterbox, to_input

_log = get_logger(__name__)
STEP = 32
_MOST = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison with the original: how far boxes, objectness and classes are away (see `parity.distance`)."""

    batch: int
    size_hw: tuple[int, int]
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppression:
    """Non-maximum suppression inside the file, and how many boxes it gives at most."""

    conf: float = 0.25
    nms: float = 0.45
    max_boxes: int = 300

    def __post_init__(self) -> None:
        for name, value in (("conf", self.conf), ("nms", self.nms)):
            if not 0 <= value <= 1:
                raise UsageError(f"{name}={value!r} must lie between 0 and 1.")
        if self.max_boxes < 1:
            raise UsageError(f"max_boxes={self.max_boxes!r} must be at least 1.")


class Pictures:
    """Pictures to calibrate and compare with: the user's own, or drawn ones where there are none."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)

    @classmethod
    def find(cls, where: Path | None) -> "Pictures":
        """Return the pictures of a folder, a labelled set or a file, at most 128, spread evenly.

        Raises:
            DataError: there is none that can be read.
        """
        if where is None:
            return cls([])
        if where.is_file() and where.suffix.lower() in (".json", ".yaml", ".yml", ".txt"):
            records = read_records(where)
            paths = [records.path(i) for i in range(len(records))]
        else:
            paths = [where] if where.is_file() else list_images(where, recursive=True)
        found: list[Path] = []
        for path in paths[:: max(1, len(paths) // _MOST)][:_MOST]:
            try:
                read_image(path)
                found.append(path)
            except DataError as error:
                _log.warning("Left out: %s", error)
        if not found:
            raise DataError(f"There are no images in {str(where)!r} to calibrate with.")
        return cls(found)

    def inputs(self, first: int, count: int, spec: Spec) -> NDArray[np.float32]:
        """Return so many pictures as one input of the network, beginning again after the last."""
        images = [self._read(i) for i in range(first, first + count)]
        boxed = np.stack([letterbox(image, spec.size_hw)[0] for image in images])
        return np.ascontiguousarray(to_input(boxed, spec.preprocessing))

    def _read(self, index: int) -> NDArray[np.uint8]:
        if self.paths:
            return read_image(self.paths[index % len(self.paths)])
        return draw_scene(seed=0, index=index, size_hw=(240, 320))[0]


class Requests(Sequence[tuple[Array, ...]]):
    """Pictures as requests of one batch size, each read when it is asked for."""

    def __init__(self, pictures: Pictures, spec: Spec, batch: int) -> None:
        self._pictures, self._spec, self._batch = pictures, spec, batch

    def __len__(self) -> int:
        return -(-len(self._pictures.paths) // self._batch)

    @overload
    def __getitem__(self, index: int) -> tuple[Array, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[Array, ...]]: ...
    def __getitem__(self, index: int | slice) -> "tuple[Array, ...] | list[tuple[Array, ...]]":
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)  # what ends a `for` loop
        return (self._pictures.inputs(index % len(self) * self._batch, self._batch, self._spec),)


def tried_sizes(spec: Spec, *, dynamic: bool) -> list[Spec]:
    """Return the spec at each size that is tried: the usual one, and others where the file takes any."""
    if not dynamic:
        return [spec]
    height, width = spec.size_hw
    others = [(height + STEP, width + 2 * STEP), (max(STEP, height // 2 // STEP * STEP), width)]
    return [spec, *(replace(spec, size_hw=size_hw) for size_hw in others)]


def compare(path: Path, source: Source, specs: Sequence[Spec], pictures: Pictures, batch: int | None) -> list[Check]:
    """Return how far a written file or folder is from the original, at each size, for one picture and for several."""
    checks = []
    for spec in specs:
        with closing(_open(path, spec)) as session:
            for count in sorted({1, batch or 3}):
                given = pictures.inputs(0, count, spec)
                wanted = np.concatenate([source.run([given[i : i + 1]])[0] for i in range(count)])
                checks.append(
                    Check(batch=count, size_hw=spec.size_hw, distance=distance(_parts(session(given)), _parts(wanted)))
                )
    return checks


def compare_suppression(
    decoded: Path, suppressed: Path, specs: Sequence[Spec], keep: Suppression, pictures: Pictures
) -> None:
    """Compare what the suppression inside a file leaves with what our own leaves of the decoded outputs.

    Raises:
        ConversionError: they differ.
    """
    for spec in specs:
        form: dict[str, Any] = {"size_hw": spec.size_hw, "strides": spec.strides, "form": "decoded", "conf": keep.conf}
        with closing(_open(decoded, spec)) as before, closing(_open(suppressed, spec)) as after:
            given = pictures.inputs(0, 2, spec)
            for all_boxes, left in zip(before(given), after(given), strict=True):
                boxes, scores, classes = postprocess(all_boxes, nms=keep.nms, **form)
                above = min(keep.max_boxes, int((scores > 0).sum()))  # a score of nothing is filling in the file
                expected = [a[:above] for a in (boxes, scores, classes)]
                found = postprocess(left, nms=1.0, **form)
                if not _agree(expected, found):
                    raise ConversionError(
                        f"The suppression in the file leaves {len(found[1])} boxes at {spec.size_hw!r}, which are not "
                        f"the {len(expected[1])} expected. Nothing was written."
                    )


def _agree(expected: Sequence[NDArray[Any]], found: Sequence[NDArray[Any]]) -> bool:
    """Return whether boxes, scores and classes are the same but for one in a hundred.

    Two boxes that overlap by the threshold itself may go either way.
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
    """Return boxes, objectness and classes apart: in pixels, boxes would hide any error of the scores."""
    return [output[..., :4], output[..., 4:5], output[..., 5:]]
