"""The whole analysis of a detector on a set, as plain numbers."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from boxwright.core.boxes import xywh_to_xyxy
from boxwright.evaluation.coco import CocoEvaluator, make_engine, read_metrics, run_engine
from boxwright.evaluation.coco_metrics import CocoMetrics
from boxwright.evaluation.curves import Curve, class_curves, confusion_matrix, total_curve
from boxwright.evaluation.errors import KINDS, Costs, Ints, Verdicts, judge, price
from boxwright.evaluation.suspects import Suspect, find_suspects

# (name, from, to): objects per image, crowds left out; and width by height of a truth box.
CROWDING = (("1 to 3 objects", 1, 4), ("4 to 9 objects", 4, 10), ("10 and more", 10, 10**9))
ASPECTS = (("tall (below 0.5)", 0.0, 0.5), ("even (0.5 to 2)", 0.5, 2.0), ("wide (above 2)", 2.0, 1e9))
LOWEST_THRESHOLD = 0.25
"""The score threshold of the confusion matrix when no detection is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """AP of a part of the set; None where no truth box counts."""

    name: str
    AP: float | None
    truths: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Analysis:
    """What a detector does well and badly on a set.

    Attributes:
        metrics: the 12 COCO numbers, and those of each class.
        verdicts: what each box turned out to be.
        costs: what each kind of error costs.
        curve: precision and recall of all boxes together.
        curves: of each class.
        threshold: the score threshold with the best F1 over all classes; the confusion matrix is for it.
        confusion: rows are the truth, columns the detections; the last ones are the background.
        calibration: hotcoco's: `ece`, `mce` and `bins`.
        crowding: AP of images with few and with many objects.
        aspects: AP of tall, even and wide objects.
        suspects: probable faults of the labels, the most confident first.
    """

    metrics: CocoMetrics
    verdicts: Verdicts
    costs: Costs
    curve: Curve
    curves: list[Curve]
    threshold: float
    confusion: Ints
    calibration: dict[str, Any]
    crowding: list[Slice]
    aspects: list[Slice]
    suspects: list[Suspect]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain JSON values."""
        names = self.verdicts.names
        return {
            **self.metrics.to_dict(),
            "errors": {
                name: {"cost": round(self.costs.cost[name], 6), "count": self.costs.count[name]}
                for name in self.costs.cost
            },
            "errors_AP50": round(self.costs.ap, 6),
            "threshold": self.threshold,
            "curves": {"all": _curve_dict(self.curve)}
            | {f"class {name}": _curve_dict(curve) for name, curve in zip(names, self.curves, strict=True)},
            "confusion": {"classes": [*names, "background"], "matrix": self.confusion.tolist()},
            "calibration": self.calibration,
            "crowding": [{"name": s.name, "AP": s.AP, "truths": s.truths} for s in self.crowding],
            "aspect": [{"name": s.name, "AP": s.AP, "truths": s.truths} for s in self.aspects],
            "suspects": [self._suspect_dict(suspect) for suspect in self.suspects],
        }

    def worst(self, most: int = 3) -> list[str]:
        """Return the kinds of error that cost most AP, each as a line of text."""
        kinds = sorted((kind for kind in EXPLAINED if self.costs.cost[kind] > 0), key=lambda k: -self.costs.cost[k])
        return [
            f"{EXPLAINED[kind]}: {100 * self.costs.cost[kind]:.1f} AP50 points ({self.costs.count[kind]} boxes)"
            + self._mostly(kind)
            for kind in kinds[:most]
        ]

    def _mostly(self, kind: str) -> str:
        """Return which classes an error concerns most."""
        v = self.verdicts
        classes = v.truth_class_ids[v.missed] if kind == "missed" else v.class_ids[v.kind == KINDS.index(kind)]
        counts = np.bincount(classes, minlength=len(v.names))
        top = [v.names[i] for i in np.argsort(-counts, kind="stable")[:3].tolist() if counts[i]]
        return f", mostly {', '.join(top)}" if top and len(v.names) > 1 else ""

    def _suspect_dict(self, suspect: Suspect) -> dict[str, Any]:
        v = self.verdicts
        values: dict[str, Any] = {"fault": suspect.fault, "image_id": int(v.image_ids[suspect.image])}
        for key, at, boxes, classes in (
            ("detection", suspect.detection, v.boxes_xywh, v.class_ids),
            ("truth", suspect.truth, v.truth_boxes_xywh, v.truth_class_ids),
            ("other", suspect.other, v.truth_boxes_xywh, v.truth_class_ids),
        ):
            if at >= 0:
                box = [round(float(x), 2) for x in xywh_to_xyxy(boxes[at])]
                values |= {key: {"class": v.names[classes[at]], "box_xyxy": box}}
        return values | {"confidence": round(suspect.confidence, 4)}


EXPLAINED = {
    "missed": "objects that nothing found",
    "class": "the right place, the wrong class",
    "location": "the right class, but misplaced",
    "both": "misplaced and of the wrong class",
    "duplicate": "objects found twice",
    "background": "boxes where there is nothing",
}
"""What each kind of error means."""


def analyse(evaluator: CocoEvaluator) -> Analysis:
    """Return the analysis of everything that an evaluator collected."""
    state = evaluator.state()
    verdicts = judge(evaluator)
    curve = total_curve(verdicts)
    threshold = LOWEST_THRESHOLD if curve.best is None else curve.best
    engine = run_engine(state)
    return Analysis(
        metrics=read_metrics(engine, state),
        verdicts=verdicts,
        costs=price(verdicts),
        curve=curve,
        curves=class_curves(verdicts),
        threshold=threshold,
        confusion=confusion_matrix(verdicts, min_score=threshold),
        calibration=_calibration(engine),
        crowding=_crowding(engine, state),
        aspects=_aspects(state),
        suspects=find_suspects(verdicts),
    )


def _calibration(engine: Any) -> dict[str, Any]:
    found: dict[str, Any] = engine.calibration()
    return {key: found[key] for key in ("ece", "mce", "bins", "num_detections")}


def _crowding(engine: Any, state: dict[str, NDArray[Any]]) -> list[Slice]:
    """Return the AP of images with few and with many objects."""
    images = np.unique(state["image_ids"])
    counts = np.bincount(
        np.searchsorted(images, state["truth_image_ids"][~state["truth_crowd"]]), minlength=len(images)
    )
    groups = {name: np.flatnonzero((counts >= low) & (counts < high)) for name, low, high in CROWDING}
    found = engine.slice_by({name: group.tolist() for name, group in groups.items() if len(group)})
    return [
        Slice(
            name=name,
            AP=_or_none(found[name]["AP"]) if len(group) else None,
            truths=int(counts[group].sum()),
        )
        for name, group in groups.items()
    ]


def _aspects(state: dict[str, NDArray[Any]]) -> list[Slice]:
    """Return the AP of tall, even and wide objects, by COCO's rule for sizes: the others don't count."""
    ratios = _aspect(state["truth_boxes_xywh"])
    # The engine's area ranges, given the ratios in place of areas, do exactly this.
    engine = make_engine({**state, "truth_areas": ratios}, detection_areas=_aspect(state["detection_boxes_xywh"]))
    engine.params.max_dets = [int(state["max_detections"][-1])]
    engine.params.area_rng = [[0, 1e10], *([low, high] for _, low, high in ASPECTS)]
    engine.params.area_rng_lbl = ["all", *(name for name, _, _ in ASPECTS)]
    engine.evaluate()
    engine.accumulate()
    precision = cast(dict[str, Any], engine.eval)["precision"]
    single = ratios[~state["truth_crowd"]]
    slices = []
    for at, (name, low, high) in enumerate(ASPECTS, start=1):
        values = precision[:, :, :, at, -1]
        counted = values[values > -1]
        slices.append(
            Slice(
                name=name,
                AP=float(counted.mean()) if counted.size else None,
                truths=int(((single >= low) & (single <= high)).sum()),
            )
        )
    return slices


def _aspect(boxes_xywh: NDArray[np.float64]) -> NDArray[np.float64]:
    ratios: NDArray[np.float64] = boxes_xywh[:, 2] / np.maximum(boxes_xywh[:, 3], 1e-9)
    return ratios


def _or_none(value: float) -> float | None:
    return None if value == -1 or np.isnan(value) else float(value)


def _curve_dict(curve: Curve) -> dict[str, Any]:
    return {
        "best_threshold": None if curve.best is None else round(curve.best, 6),
        "best_f1": round(curve.best_f1, 6),
        **{key: np.round(getattr(curve, key), 5).tolist() for key in ("thresholds", "precision", "recall")},
    }
