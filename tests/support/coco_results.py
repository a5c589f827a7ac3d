"""AP of a COCO results file, as other tools write them."""

import json
from pathlib import Path

import numpy as np

from boxwright.evaluation.coco import CocoEvaluator
from boxwright.evaluation.coco_metrics import CocoMetrics


def evaluate_files(truth_path: Path, results_path: Path) -> CocoMetrics:
    """Return the COCO numbers of a results file."""
    return read_results(truth_path, results_path.read_bytes()).evaluate()


def read_results(truth_path: Path, results: bytes) -> CocoEvaluator:
    """Return an evaluator that has seen the results of a file."""
    truth, found = json.loads(truth_path.read_text()), json.loads(results)
    categories = sorted(truth["categories"], key=lambda entry: entry["id"])
    ids = [entry["id"] for entry in categories]
    boxes = truth["annotations"]
    state = {
        "names": [entry["name"] for entry in categories],
        "max_detections": (1, 10, 100),
        "image_ids": [entry["id"] for entry in truth["images"]],
        "truth_image_ids": [entry["image_id"] for entry in boxes],
        "truth_class_ids": np.searchsorted(ids, [entry["category_id"] for entry in boxes]),
        "truth_boxes_xywh": [entry["bbox"] for entry in boxes],
        "truth_areas": [entry.get("area", entry["bbox"][2] * entry["bbox"][3]) for entry in boxes],
        "truth_crowd": [entry.get("iscrowd", 0) for entry in boxes],
        "detection_image_ids": [entry["image_id"] for entry in found],
        "detection_class_ids": np.searchsorted(ids, [entry["category_id"] for entry in found]),
        "detection_boxes_xywh": [entry["bbox"] for entry in found],
        "detection_scores": [entry["score"] for entry in found],
    }
    return CocoEvaluator.from_state({key: np.array(values) for key, values in state.items()})
