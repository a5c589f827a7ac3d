from pathlib import Path

import cv2
import numpy as np

from boxwright.core.types import Detections
from boxwright.data.records import Records
from boxwright.evaluation.analysis import analyse
from boxwright.evaluation.coco import CocoEvaluator
from boxwright.tasks.evaluation_report import make_evaluation_page

CLASSES = 119
SIDE_PX, CELL_PX = 1000, 100
MEBIBYTE = 1 << 20


def test_a_page_of_many_classes_and_large_pictures_has_at_most_5_mb(tmp_path: Path) -> None:
    # Every class is taken for every other one, and noise is what a JPEG needs most bytes for.
    names = tuple(f"class {at} ☃ with a long name" for at in range(CLASSES))
    rng = np.random.default_rng(0)
    paths = [f"{at}.png" for at in range(4)]
    for path in paths:
        cv2.imwrite(str(tmp_path / path), rng.integers(0, 256, (SIDE_PX, SIDE_PX, 3), dtype=np.uint8))
    corner = np.stack(np.meshgrid(np.arange(10), np.arange(10)), axis=-1).reshape(-1, 2) * float(CELL_PX)
    boxes = np.concatenate([corner, corner + CELL_PX], axis=1)
    pairs = np.array([(a, b) for a in range(CLASSES) for b in range(CLASSES)])[: 141 * 100].reshape(141, 100, 2)
    evaluator = CocoEvaluator(names)
    for at, (truth, found) in enumerate(pairs.transpose(0, 2, 1)):
        moved, labels = boxes + 30.0 * (at % 10 == 0), len(boxes) * (at % 10 != 1)
        detections = Detections(
            boxes_xyxy=moved, scores=rng.uniform(0.5, 1, 100), class_ids=found, names=names, size_hw=(SIDE_PX, SIDE_PX)
        )
        evaluator.add(
            image_id=at,
            size_hw=(SIDE_PX, SIDE_PX),
            truth_boxes_xyxy=boxes[:labels],
            truth_class_ids=truth[:labels],
            detections=detections,
        )
    records = Records.from_lists(
        root=str(tmp_path),
        paths=[paths[at % len(paths)] for at in range(len(pairs))],
        boxes_xyxy=[boxes] * len(pairs),
        class_ids=pairs[:, :, 0].tolist(),
        names=names,
        image_ids=list(range(len(pairs))),
    )
    page = make_evaluation_page(analyse(evaluator), records, {"model": "a model", "data": "a set"})
    assert 3 * MEBIBYTE < len(page.encode()) <= 5_000_000
    assert page.count("data:image/jpeg;base64,") > 20
    assert "The matrix is too large for a page." in page
    assert "<b>a model</b> on <b>a set</b>" in page
