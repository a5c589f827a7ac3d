"""Random labelled images with detections that are wrong in every way."""

import numpy as np

from boxwright.core.types import Detections
from boxwright.evaluation.coco import CocoEvaluator

NAMES = ("a", "b", "c", "d")
SIZE_HW = (200, 200)


def make_evaluator(seed: int, *, images: int = 40, most: int = 8, strays: int = 4) -> CocoEvaluator:
    """Return an evaluator with noisy copies of truth boxes, some of another class, and strays. No two scores are equal.

    Each class has truth boxes, and about one truth box in ten is a crowd.
    """
    rng = np.random.default_rng(seed)
    evaluator = CocoEvaluator(NAMES)
    for image_id in range(images):
        count = int(rng.integers(0, most)) + len(NAMES) * (image_id == 0)
        corner = rng.uniform(0, 120, (count, 2))
        boxes = np.concatenate([corner, corner + rng.uniform(10, 80, (count, 2))], axis=1)
        classes = np.arange(count) % len(NAMES) if image_id == 0 else rng.integers(0, len(NAMES), count)
        crowd = (rng.random(count) < 0.1) & (image_id > 0)
        copied = rng.integers(0, count, 2 * count) if count else np.zeros(0, np.int64)
        wrong = rng.random(len(copied)) < 0.2
        found = np.concatenate([boxes[copied] + rng.normal(0, 6, (len(copied), 4)), rng.uniform(0, 200, (strays, 4))])
        found = np.sort(found.reshape(-1, 2, 2), axis=1).reshape(-1, 4)
        kinds = np.concatenate(
            [np.where(wrong, (classes[copied] + 1) % len(NAMES), classes[copied]), rng.integers(0, len(NAMES), strays)]
        )
        evaluator.add(
            image_id=image_id,
            size_hw=SIZE_HW,
            truth_boxes_xyxy=boxes,
            truth_class_ids=classes,
            truth_crowd=crowd,
            detections=Detections(
                boxes_xyxy=found, scores=rng.random(len(found)), class_ids=kinds, names=NAMES, size_hw=SIZE_HW
            ),
        )
    return evaluator


def tidecv_costs(evaluator: CocoEvaluator) -> dict[str, float]:
    """Return tidecv's AP and the cost of each error, from 0 to 1, under our names. tidecv must be installed."""
    from tidecv import TIDE, Data

    state = evaluator.state()
    truth, found = Data("truth"), Data("found")
    for image in state["image_ids"].tolist():
        truth.add_image(image, str(image))  # or it would not count the detections of images without truth boxes
    rows = zip(
        *(state[f"truth_{key}"].tolist() for key in ("image_ids", "class_ids", "boxes_xywh", "crowd")), strict=True
    )
    for image, class_id, box, crowd in rows:
        (truth.add_ignore_region if crowd else truth.add_ground_truth)(image, class_id, box)
    keys = ("image_ids", "class_ids", "scores", "boxes_xywh")
    for image, class_id, score, box in zip(*(state[f"detection_{key}"].tolist() for key in keys), strict=True):
        found.add_detection(image, class_id, score, box)
    tide = TIDE()
    ap = tide.evaluate(truth, found, mode=TIDE.BOX).ap
    errors = tide.get_all_errors()
    ours = {
        "Cls": "class",
        "Loc": "location",
        "Both": "both",
        "Dupe": "duplicate",
        "Bkg": "background",
        "Miss": "missed",
    }
    costs = {name: errors["main"]["found"][key] for key, name in ours.items()}
    special = errors["special"]["found"]
    costs |= {"AP": ap, "all_false": special["FalsePos"], "all_missed": special["FalseNeg"]}
    return {name: value / 100 for name, value in costs.items()}
