"""The values that rooms exchange: `Detections` and `Precision` (`Spec` has its own file)."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.core.boxes import clip_xyxy, xyxy_to_cxcywh, xyxy_to_xywh
from boxwright.core.errors import MissingDependencyError, UsageError, suggest
from boxwright.core.packages import missing_packages
from boxwright.core.text import csv_cell


class Precision(StrEnum):
    """The number formats that a model is trained or run in."""

    FP64 = "64"
    FP32 = "32"
    FP16 = "16"
    BF16 = "bf16"
    BF16_TRUE = "bf16-true"
    INT8 = "int8"

    @classmethod
    def parse(cls, value: "str | int | Precision") -> "Precision":
        """Return the precision that a user means by `32`, "fp32", "bfloat16", "16-mixed" and the like.

        Raises:
            UsageError: the value names no precision.

        Example:
            >>> Precision.parse("fp32") is Precision.FP32
            True
        """
        text = str(value).strip().lower()
        aliases = {
            "fp64": "64", "float64": "64", "double": "64", "64-true": "64",
            "fp32": "32", "float32": "32", "full": "32", "32-true": "32",
            "fp16": "16", "float16": "16", "half": "16", "16-mixed": "16",
            "bfloat16": "bf16", "bf16-mixed": "bf16", "i8": "int8", "8": "int8",
        }  # fmt: skip
        text = aliases.get(text, text)
        known = [p.value for p in cls]
        if text not in known:
            raise UsageError(f"Unknown precision {value!r}.{suggest(text, known)} Choose from: {', '.join(known)}.")
        return cls(text)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Detections:
    """The boxes found in one image, best first as the detector gave them.

    Attributes:
        boxes_xyxy: corners in pixels of the original image, float32 (N, 4).
        scores: confidence from 0 to 1, float32 (N,).
        class_ids: index into `names`, int64 (N,).
        names: every class the detector knows.
        size_hw: height and width of the original image.

    Example:
        >>> found = Detections.empty(names=("cat", "dog"), size_hw=(480, 640))
        >>> len(found), found.to_json()
        (0, '[]')
    """

    boxes_xyxy: NDArray[np.float32]
    scores: NDArray[np.float32]
    class_ids: NDArray[np.int64]
    names: tuple[str, ...]
    size_hw: tuple[int, int]

    def __post_init__(self) -> None:
        boxes = np.asarray(self.boxes_xyxy, dtype=np.float32).reshape(-1, 4)
        scores = np.asarray(self.scores, dtype=np.float32).reshape(-1)
        class_ids = np.asarray(self.class_ids, dtype=np.int64).reshape(-1)
        if not len(boxes) == len(scores) == len(class_ids):
            raise UsageError(
                f"Detections need as many boxes as scores and classes: {len(boxes)}, {len(scores)}, {len(class_ids)}."
            )
        if len(class_ids) and not 0 <= class_ids.min() <= class_ids.max() < len(self.names):
            raise UsageError(
                f"Class ids reach from {class_ids.min()} to {class_ids.max()}, but there are {len(self.names)} names."
            )
        if not (np.isfinite(boxes).all() and np.isfinite(scores).all()):  # JSON has no such numbers
            raise UsageError("Detections need finite boxes and scores, but there is an infinity or NaN among them.")
        object.__setattr__(self, "boxes_xyxy", boxes)
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "class_ids", class_ids)

    @classmethod
    def empty(cls, *, names: Sequence[str], size_hw: tuple[int, int]) -> "Detections":
        """Return no detections for an image of this size."""
        return cls(
            boxes_xyxy=np.zeros((0, 4), np.float32),
            scores=np.zeros(0, np.float32),
            class_ids=np.zeros(0, np.int64),
            names=tuple(names),
            size_hw=size_hw,
        )

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Iterator[tuple[NDArray[np.float32], float, str]]:
        for box, score, class_id in zip(self.boxes_xyxy, self.scores, self.class_ids, strict=True):
            yield box, float(score), self.names[class_id]

    def __getitem__(self, index: "slice | NDArray[Any] | Sequence[int]") -> "Detections":
        picked = index if isinstance(index, slice) else np.asarray(index)
        if not isinstance(picked, slice) and picked.size == 0:
            picked = picked.astype(np.intp)  # an empty list becomes a float array, which can't index
        return replace(
            self, boxes_xyxy=self.boxes_xyxy[picked], scores=self.scores[picked], class_ids=self.class_ids[picked]
        )

    @property
    def labels(self) -> list[str]:
        """The class name of each box."""
        return [self.names[i] for i in self.class_ids]

    def filter(
        self,
        *,
        min_score: float = 0.0,
        classes: Sequence[str | int] | str | int | None = None,
        min_side: float = 0.0,
        top: int | None = None,
    ) -> "Detections":
        """Return the detections that pass every given test; `top` keeps the highest scores.

        Raises:
            UsageError: `classes` names a class that this detector does not know, or `top` is negative.
        """
        keep = self.scores >= min_score
        if isinstance(classes, str | int):  # a string is a sequence too, of letters
            classes = [classes]
        if classes is not None:
            keep &= np.isin(self.class_ids, [self._class_id(c) for c in classes])
        if min_side > 0:
            sides = self.boxes_xyxy[:, 2:4] - self.boxes_xyxy[:, 0:2]
            keep &= (sides >= min_side).all(axis=1)
        index = np.flatnonzero(keep)
        if top is not None and top < 0:
            raise UsageError(f"top={top!r} is negative. Use 0 or more, or None for all.")
        if top is not None and len(index) > top:
            index = np.sort(index[np.argsort(-self.scores[index], kind="stable")[:top]])
        return self[index]

    def _class_id(self, wanted: str | int) -> int:
        if isinstance(wanted, int | np.integer):
            if not 0 <= wanted < len(self.names):
                raise UsageError(f"Class id {int(wanted)!r} is outside 0 to {len(self.names) - 1}.")
            return int(wanted)
        if wanted not in self.names:
            raise UsageError(
                f"Unknown class {wanted!r}.{suggest(wanted, self.names)} The detector knows: {', '.join(self.names)}."
            )
        return self.names.index(wanted)

    def clip(self) -> "Detections":
        """Return the detections with boxes cut to the image."""
        return replace(self, boxes_xyxy=clip_xyxy(self.boxes_xyxy, self.size_hw).astype(np.float32))

    def to_list(self) -> list[dict[str, Any]]:
        """Return one dict per box: class, class_id, score, box_xyxy."""
        return [
            {
                "class": self.names[class_id],
                "class_id": int(class_id),
                "score": round(float(score), 6),
                "box_xyxy": [round(float(v), 3) for v in box],
            }
            for box, score, class_id in zip(self.boxes_xyxy, self.scores, self.class_ids, strict=True)
        ]

    def to_json(self) -> str:
        """Return `to_list` as JSON text."""
        return json.dumps(self.to_list(), ensure_ascii=False)

    def to_csv(self, *, header: bool = True) -> str:
        """Return one line per box: class, class_id, score, x1, y1, x2, y2.

        A class name that a spreadsheet would evaluate (it begins with = + - @) gets a leading apostrophe.
        """
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        if header:
            writer.writerow(["class", "class_id", "score", "x1", "y1", "x2", "y2"])
        for row in self.to_list():
            writer.writerow([csv_cell(row["class"]), row["class_id"], row["score"], *row["box_xyxy"]])
        return out.getvalue()

    def to_coco(self, *, image_id: int, category_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """Return COCO result entries; `category_ids[class_id]` is the category, by default the class id plus 1.

        Raises:
            UsageError: there are not as many category ids as names.
        """
        categories = list(category_ids) if category_ids is not None else list(range(1, len(self.names) + 1))
        if len(categories) != len(self.names):
            raise UsageError(
                f"{len(self.names)} class names but {len(categories)} category ids. Give one for each name."
            )
        boxes = xyxy_to_xywh(self.boxes_xyxy)
        return [
            {
                "image_id": image_id,
                "category_id": int(categories[class_id]),
                "bbox": [round(float(v), 3) for v in box],
                "score": round(float(score), 6),
            }
            for box, score, class_id in zip(boxes, self.scores, self.class_ids, strict=True)
        ]

    def to_yolo_txt(self, *, scores: bool = True) -> str:
        """Return YOLO lines: class id, centre and size as fractions of the image, and the score unless switched off."""
        height, width = self.size_hw
        boxes = xyxy_to_cxcywh(self.clip().boxes_xyxy) / np.array([width, height, width, height], np.float32)
        lines = []
        for box, score, class_id in zip(boxes, self.scores, self.class_ids, strict=True):
            values = [f"{v:.6f}" for v in box] + ([f"{score:.6f}"] if scores else [])
            lines.append(" ".join([str(class_id), *values]))
        return "".join(line + "\n" for line in lines)

    def to_supervision(self) -> Any:
        """Return the same boxes as `supervision.Detections`.

        Raises:
            MissingDependencyError: supervision is not installed.
        """
        if missing_packages(["supervision"]):
            raise MissingDependencyError(
                "to_supervision() needs supervision, which is not installed. Run: pip install supervision"
            )
        return import_module("supervision").Detections(
            xyxy=self.boxes_xyxy,
            confidence=self.scores,
            class_id=self.class_ids,
            data={"class_name": np.array(self.labels, dtype=str)},
        )
