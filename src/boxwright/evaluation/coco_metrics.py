"""`CocoMetrics`: the 12 COCO numbers of a set, and the numbers of every class."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The 12 numbers in COCO's order: name, IoU threshold, area, and which of the three limits on detections.
_LINES: tuple[tuple[str, str, str, int], ...] = (
    ("AP", "0.50:0.95", "all", 2),
    ("AP50", "0.50", "all", 2),
    ("AP75", "0.75", "all", 2),
    ("AP_small", "0.50:0.95", "small", 2),
    ("AP_medium", "0.50:0.95", "medium", 2),
    ("AP_large", "0.50:0.95", "large", 2),
    ("AR1", "0.50:0.95", "all", 0),
    ("AR10", "0.50:0.95", "all", 1),
    ("AR100", "0.50:0.95", "all", 2),
    ("AR_small", "0.50:0.95", "small", 2),
    ("AR_medium", "0.50:0.95", "medium", 2),
    ("AR_large", "0.50:0.95", "large", 2),
)
_IOU_INDEX = {"0.50": 0, "0.75": 5}
_AREA_INDEX = {"all": 0, "small": 1, "medium": 2, "large": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMetrics:
    """The numbers of one class; -1.0 where the set has no truth box of it. `truths` counts no crowds."""

    AP: float
    AP50: float
    AP75: float
    AR100: float
    truths: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CocoMetrics:
    """The 12 COCO numbers of a set, from 0 to 1, and AP by class; -1.0 where no truth box counts, as COCO has it.

    Attributes:
        per_class: numbers by class name, in the order of the classes.
        images: how many images were scored.
        truths: how many truth boxes were to be found; crowds are not counted.
        detections: how many detections were given, also those beyond the limit.
        max_detections: the limits on detections of one class in one image. AR1, AR10 and AR100 keep their names
            when the limits are others; everything but AR1 and AR10 uses the last one.
    """

    AP: float
    AP50: float
    AP75: float
    AP_small: float
    AP_medium: float
    AP_large: float
    AR1: float
    AR10: float
    AR100: float
    AR_small: float
    AR_medium: float
    AR_large: float
    per_class: dict[str, ClassMetrics]
    images: int
    truths: int
    detections: int
    max_detections: tuple[int, int, int] = (1, 10, 100)

    @classmethod
    def from_tables(
        cls,
        precision: NDArray[np.float64],
        recall: NDArray[np.float64],
        *,
        names: Sequence[str],
        truths: NDArray[np.int64],
        images: int,
        detections: int,
        max_detections: tuple[int, int, int],
    ) -> "CocoMetrics":
        """Return the numbers that COCO's tables hold.

        Args:
            precision: by IoU threshold, recall, class, area and limit on detections; -1 where no truth box counts.
            recall: by IoU threshold, class, area and limit on detections; -1 likewise.
            names: class names by class id.
            truths: how many truth boxes were to be found of every class.
            images: how many images were scored.
            detections: how many detections were given.
            max_detections: the limits on detections.
        """
        numbers = {}
        for name, iou, area, limit in _LINES:
            table = (precision if name.startswith("AP") else recall)[..., _AREA_INDEX[area], limit]
            numbers[name] = _mean(table[_IOU_INDEX[iou]] if iou in _IOU_INDEX else table)
        per_class = {
            name: ClassMetrics(
                AP=_mean(precision[:, :, class_id, 0, -1]),
                AP50=_mean(precision[_IOU_INDEX["0.50"], :, class_id, 0, -1]),
                AP75=_mean(precision[_IOU_INDEX["0.75"], :, class_id, 0, -1]),
                AR100=_mean(recall[:, class_id, 0, -1]),
                truths=int(truths[class_id]),
            )
            for class_id, name in enumerate(names)
        }
        return cls(
            **numbers,
            per_class=per_class,
            images=images,
            truths=int(truths.sum()),
            detections=detections,
            max_detections=max_detections,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; a number that is not available is None, because -1 would spoil a mean or a plot."""
        return {
            **{name: _or_none(getattr(self, name)) for name, *_ in _LINES},
            "images": self.images,
            "truths": self.truths,
            "detections": self.detections,
            "max_detections": list(self.max_detections),
            "per_class": {
                name: {key: _or_none(value) for key, value in asdict(metrics).items()}
                for name, metrics in self.per_class.items()
            },
        }

    def lines(self) -> list[str]:
        """Return the 12 lines as every COCO tool prints them, to the blank."""
        lines = []
        for name, iou, area, limit in _LINES:
            title = "Average Precision" if name.startswith("AP") else "Average Recall"
            lines.append(
                f" {title:<18} ({name[:2]}) @[ IoU={iou:<9} | area={area:>6} | "
                f"maxDets={self.max_detections[limit]:>3} ] = {getattr(self, name):0.3f}"
            )
        return lines


def _mean(values: NDArray[np.float64]) -> float:
    counted = values[values > -1]
    return float(counted.mean()) if counted.size else -1.0


def _or_none(value: float) -> float | None:
    return None if value == -1 else value
