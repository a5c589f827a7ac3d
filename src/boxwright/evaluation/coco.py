"""COCO AP, collected image by image.

The engine is hotcoco: the fastest of the evaluators in benchmarks/coco_evaluators.py. Its tables of precision and
recall equal those of pycocotools bit for bit.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from hotcoco import COCO, COCOeval
from numpy.typing import ArrayLike, DTypeLike, NDArray

from boxwright.core.boxes import area_xyxy, xyxy_to_xywh
from boxwright.core.errors import DataError, UsageError
from boxwright.core.types import Detections
from boxwright.evaluation.coco_metrics import CocoMetrics

# What is kept of every image, truth box and detection: dtype and shape of one row.
# Boxes and scores are float64: rounding what a results file says would make ties and move IoUs over a threshold.
_COLUMNS: dict[str, tuple[DTypeLike, tuple[int, ...]]] = {
    "image_ids": (np.int64, ()),
    "truth_image_ids": (np.int64, ()),
    "truth_boxes_xywh": (np.float64, (4,)),
    "truth_areas": (np.float64, ()),
    "truth_class_ids": (np.int64, ()),
    "truth_crowd": (np.bool_, ()),
    "detection_image_ids": (np.int64, ()),
    "detection_boxes_xywh": (np.float64, (4,)),
    "detection_scores": (np.float64, ()),
    "detection_class_ids": (np.int64, ()),
}


_JOINED = 1000  # images whose arrays are joined: an array of its own takes a hundred bytes more
_MOST_ROWS = 500_000  # truth boxes and detections that the engine gets at once; it takes some 300 bytes for each


class CocoEvaluator:
    """Collects detections and ground truth image by image and returns the COCO numbers of the whole set.

    The order of the images does not change the numbers.

    Args:
        names: class names by class id.
        max_detections: how many detections of one class in one image count, best scores first: the limits of AR1,
            of AR10, and of everything else.

    Raises:
        UsageError: there is no name, a name appears twice, or the limits are not three rising positive numbers.

    Example:
        >>> evaluator = CocoEvaluator(["cat", "dog"])
        >>> found = Detections(
        ...     boxes_xyxy=[[10, 10, 60, 60]], scores=[0.9], class_ids=[1], names=("cat", "dog"), size_hw=(100, 100)
        ... )
        >>> evaluator.add(
        ...     image_id=7, size_hw=(100, 100), detections=found,
        ...     truth_boxes_xyxy=[[10, 10, 60, 62]], truth_class_ids=[1],
        ... )
        >>> metrics = evaluator.evaluate()
        >>> round(metrics.AP, 3), metrics.per_class["cat"].AP
        (1.0, -1.0)
        >>> print(metrics.lines()[0])
         Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 1.000
    """

    def __init__(self, names: Sequence[str], *, max_detections: tuple[int, int, int] = (1, 10, 100)) -> None:
        self._names = tuple(names)
        if not self._names:
            raise UsageError("An evaluator needs at least one class name.")
        twice = sorted({n for n in self._names if self._names.count(n) > 1})
        if twice:
            raise UsageError(f"Class names must differ, but {twice[0]!r} appears twice. Rename one of them.")
        limits = tuple(int(n) for n in max_detections)
        if len(limits) != 3 or limits[0] < 1 or list(limits) != sorted(set(limits)):
            raise UsageError(
                f"max_detections={max_detections!r} must be three rising positive numbers, such as (1, 10, 100)."
            )
        self._max_detections = (limits[0], limits[1], limits[2])
        self._seen: set[int] = set()
        self._chunks: dict[str, list[NDArray[Any]]] = {column: [] for column in _COLUMNS}
        self._unjoined = 0  # of the chunks of each column

    def __len__(self) -> int:
        return len(self._seen)

    def add(
        self,
        *,
        image_id: int,
        size_hw: tuple[int, int],
        truth_boxes_xyxy: ArrayLike,
        truth_class_ids: ArrayLike,
        detections: Detections,
        truth_crowd: ArrayLike | None = None,
        truth_areas: ArrayLike | None = None,
    ) -> None:
        """Add one image; images without truth or without detections count too.

        Args:
            image_id: any integer, once.
            size_hw: height and width of the image that the truth boxes belong to.
            truth_boxes_xyxy: corners in pixels of that image, (N, 4).
            truth_class_ids: index into the names, (N,).
            detections: what the detector found in that image.
            truth_crowd: True where a box stands for a crowd: detections in it are neither right nor wrong.
            truth_areas: object areas in square pixels, for small, medium and large; by default the boxes' areas.

        Raises:
            UsageError: the image was added before, the detections are of another image size or other classes,
                the truth arrays do not fit together, or a class id is out of range.
            DataError: a box, an area or a score is not a finite number.
        """
        if tuple(detections.names) != self._names:
            raise UsageError(
                f"Image {image_id!r}: the detections are of the classes {_short(detections.names)}, the evaluator is "
                f"for {_short(self._names)}. Create it with the detector's names."
            )
        if tuple(detections.size_hw) != tuple(size_hw):
            raise UsageError(
                f"Image {image_id!r} is size_hw={tuple(size_hw)!r}, but the detections are for an image of "
                f"{tuple(detections.size_hw)!r}. Scale them back to the original image first."
            )
        boxes_xyxy = np.asarray(truth_boxes_xyxy, np.float64)
        if boxes_xyxy.size and boxes_xyxy.shape[1:] != (4,):
            raise UsageError(f"Image {image_id!r}: truth_boxes_xyxy has the shape {boxes_xyxy.shape!r}, not (N, 4).")
        boxes_xyxy = boxes_xyxy.reshape(-1, 4)
        count = len(boxes_xyxy)
        found_xyxy = detections.boxes_xyxy.astype(np.float64)
        self._append(
            {
                "image_ids": [image_id],
                "truth_image_ids": np.full(count, image_id),
                "truth_boxes_xywh": xyxy_to_xywh(boxes_xyxy),
                "truth_areas": area_xyxy(boxes_xyxy) if truth_areas is None else truth_areas,
                "truth_class_ids": truth_class_ids,
                "truth_crowd": np.zeros(count) if truth_crowd is None else truth_crowd,
                "detection_image_ids": np.full(len(detections), image_id),
                "detection_boxes_xywh": xyxy_to_xywh(found_xyxy),
                "detection_scores": detections.scores,
                "detection_class_ids": detections.class_ids,
            },
            source=f"Image {image_id!r}",
        )

    def merge(self, other: "CocoEvaluator") -> None:
        """Add everything that another evaluator collected, as if this one had seen all images.

        Raises:
            UsageError: classes or limits differ, or an image is in both.
        """
        if other._names != self._names or other._max_detections != self._max_detections:
            raise UsageError(
                f"Only evaluators of the same classes and limits can be merged: {_short(self._names)} with "
                f"{self._max_detections!r} here, {_short(other._names)} with {other._max_detections!r} there."
            )
        self._append(other._columns(), source="The other evaluator")

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything collected as plain arrays, to send to another process or to save."""
        return {
            "names": np.array(self._names, np.str_),
            "max_detections": np.array(self._max_detections, np.int64),
            **self._columns(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, NDArray[Any]]) -> "CocoEvaluator":
        """Return the evaluator whose `state` this is.

        Raises:
            UsageError: an array is missing or does not fit the others.
        """
        missing = [key for key in ("names", "max_detections", *_COLUMNS) if key not in state]
        if missing:
            raise UsageError(f"This is not the state of a CocoEvaluator: {missing[0]!r} is missing.")
        first, second, last = (int(n) for n in state["max_detections"])
        for column in ("truth_image_ids", "detection_image_ids"):
            strays = np.setdiff1d(state[column], state["image_ids"])
            if len(strays):
                raise UsageError(f"The state: {column} holds {int(strays[0])}, which is not in image_ids.")
        evaluator = cls([str(n) for n in state["names"]], max_detections=(first, second, last))
        evaluator._append(state, source="The state")
        return evaluator

    def evaluate(self) -> CocoMetrics:
        """Return the COCO numbers of everything added so far; more may be added afterwards.

        Do not call this in a process that was forked after a call: the engine's threads do not survive a fork, and
        the call would hang. Spawned processes are fine.
        """
        state = self.state()
        return _to_metrics(_make_tables(state), state)

    def _columns(self) -> dict[str, NDArray[Any]]:
        for column, (dtype, row) in _COLUMNS.items():
            self._chunks[column] = [np.concatenate([np.zeros((0, *row), dtype), *self._chunks[column]])]
        self._unjoined = 0
        return {column: chunks[0] for column, chunks in self._chunks.items()}

    def _append(self, values: Mapping[str, ArrayLike], *, source: str) -> None:
        """Check rows of every column, then add all of them or none."""
        rows = {c: np.asarray(values[c]).astype(dtype).reshape(-1, *row) for c, (dtype, row) in _COLUMNS.items()}
        for column, array in rows.items():
            boxes = len(rows["truth_boxes_xywh" if column.startswith("truth") else "detection_boxes_xywh"])
            if column != "image_ids" and len(array) != boxes:
                raise UsageError(f"{source}: {column} has {len(array)} values for {boxes} boxes. Give one per box.")
            if column.endswith("class_ids") and ((array < 0) | (array >= len(self._names))).any():
                raise UsageError(
                    f"{source}: {column} reach from {array.min()} to {array.max()}, "
                    f"but there are {len(self._names)} names. Class ids are indices into the names."
                )
            if not np.isfinite(array).all():
                raise DataError(
                    f"{source}: {column} holds a value that is not a finite number. "
                    f"Look at the annotations, or at the model: one that diverged gives such values."
                )
        ids, counts = np.unique(rows["image_ids"], return_counts=True)
        twice = [i for i, count in zip(ids.tolist(), counts.tolist(), strict=True) if count > 1 or i in self._seen]
        if twice:
            raise UsageError(f"{source}: image_id={twice[0]!r} is there twice. Add every image once.")
        self._seen.update(ids.tolist())
        self._unjoined += 1
        for column, array in rows.items():
            chunks = self._chunks[column]
            chunks.append(array)
            if self._unjoined == _JOINED:
                chunks[-_JOINED:] = [np.concatenate(chunks[-_JOINED:])]
        self._unjoined %= _JOINED


def run_engine(state: Mapping[str, NDArray[Any]]) -> COCOeval:
    """Return hotcoco's engine after it has evaluated the state of an evaluator."""
    engine = make_engine(state)
    engine.params.max_dets = state["max_detections"].tolist()
    engine.evaluate()
    # Not summarize(): it prints to stdout, and warns unless the limits are 1, 10, 100.
    engine.accumulate()
    return engine


def read_metrics(engine: COCOeval, state: Mapping[str, NDArray[Any]]) -> CocoMetrics:
    """Return the numbers of an engine that has evaluated a state."""
    return _to_metrics(cast(dict[str, Any], engine.eval), state)


def _make_tables(state: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the engine's tables of a state. Classes are independent, so those of a large set come in groups."""
    classes = len(state["names"])
    rows = sum(np.bincount(state[f"{kind}_class_ids"], minlength=classes) for kind in ("truth", "detection"))
    cuts, taken = [0], 0
    for class_id, count in enumerate(np.asarray(rows).tolist()):
        if taken and taken + count > _MOST_ROWS:
            cuts.append(class_id)
            taken = 0
        taken += count
    if len(cuts) == 1:
        return cast(dict[str, Any], run_engine(state).eval)
    parts = (_of_classes(state, *group) for group in itertools.pairwise([*cuts, classes]))
    groups = [cast(dict[str, Any], run_engine(part).eval) for part in parts]
    # The axes end with class, area and limit.
    return {
        name: np.concatenate([np.asarray(one[name]) for one in groups], axis=-3) for name in ("precision", "recall")
    }


def _of_classes(state: Mapping[str, NDArray[Any]], first: int, end: int) -> dict[str, NDArray[Any]]:
    """Return the state of some of the classes, with all images."""
    part = {**state, "names": state["names"][first:end]}
    for kind in ("truth", "detection"):
        class_ids = state[f"{kind}_class_ids"]
        rows = (class_ids >= first) & (class_ids < end)
        part |= {column: state[column][rows] for column in _COLUMNS if column.startswith(kind)}
        part[f"{kind}_class_ids"] -= first
    return part


def _to_metrics(tables: Mapping[str, Any], state: Mapping[str, NDArray[Any]]) -> CocoMetrics:
    to_find = state["truth_class_ids"][~state["truth_crowd"]]
    first, second, last = state["max_detections"].tolist()
    return CocoMetrics.from_tables(
        tables["precision"],  # (IoU, recall, class, area, limit)
        tables["recall"],  # (IoU, class, area, limit)
        names=[str(name) for name in state["names"]],
        truths=np.bincount(to_find, minlength=len(state["names"])),
        images=len(state["image_ids"]),
        detections=len(state["detection_scores"]),
        max_detections=(first, second, last),
    )


def make_engine(state: Mapping[str, NDArray[Any]], *, detection_areas: NDArray[np.float64] | None = None) -> COCOeval:
    """Return hotcoco's engine over the state of an evaluator; image ids are ranks, from 0.

    Args:
        state: the evaluator's.
        detection_areas: what counts as the area of each detection, if not its box's.
    """
    # Equal scores are ranked by image id. Ranks in place of ids keep that order, and allow negative and huge ids.
    images = np.unique(state["image_ids"])
    truth = COCO.from_arrays(
        [{"id": rank} for rank in range(len(images))],
        [{"id": class_id, "name": str(name)} for class_id, name in enumerate(state["names"])],
        np.searchsorted(images, state["truth_image_ids"]),
        state["truth_class_ids"],
        state["truth_boxes_xywh"],
        area=state["truth_areas"],
        iscrowd=state["truth_crowd"],
    )
    columns = (
        np.searchsorted(images, state["detection_image_ids"]),
        state["detection_boxes_xywh"],
        state["detection_scores"],
        state["detection_class_ids"],
    )
    found = truth.load_res(np.column_stack(columns))
    if detection_areas is not None:
        found.update_anns(ids=np.arange(1, len(detection_areas) + 1), area=detection_areas)
    return COCOeval(truth, found, "bbox")


def _short(names: Sequence[str]) -> str:
    text = ", ".join(repr(n) for n in names[:5])
    return f"{text}, ... ({len(names)})" if len(names) > 5 else text
