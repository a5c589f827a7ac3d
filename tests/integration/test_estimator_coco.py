"""COCO AP by the Estimator: a number that no mean of batches gives, the same for any number of workers."""

from typing import Any

import numpy as np
import torch
from support.estimation import make_estimator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from boxwright.accel.estimator import EvaluatorMetric
from boxwright.core.types import Detections
from boxwright.evaluation.coco import CocoEvaluator

NAMES = ("disc", "bar")
SIZE_HW = (100, 120)
IMAGES = 11


class Boxes(Dataset[Any]):
    """Images with one to three boxes; a fixed noise stands for what a detector gets wrong."""

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> dict[str, Any]:
        random = np.random.default_rng(index)
        count = 1 + index % 3
        corners = random.uniform(0, 60, (count, 2))
        boxes = np.concatenate([corners, corners + random.uniform(20, 40, (count, 2))], 1).astype(np.float32)
        return {
            "image_id": index,
            "seen": torch.from_numpy(boxes + random.normal(0, 3, (count, 4)).astype(np.float32)),
            "boxes": boxes,
            "classes": random.integers(0, 2, count),
        }


class Detector(nn.Module):
    """Says what it sees, moved by its one weight, with a score for each."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor([1.0]))

    def forward(self, seen: list[Tensor]) -> list[Tensor]:
        return [torch.cat([one + self.shift, (one[:, :1] * 7).sin().abs()], 1) for one in seen]


def detect(model: nn.Module, batch: list[dict[str, Any]]) -> Any:
    return None, model([one["seen"] for one in batch])


def add(evaluator: CocoEvaluator, outputs: list[Tensor], targets: list[dict[str, Any]]) -> None:
    for found, truth in zip(outputs, targets, strict=True):
        detections = Detections(
            boxes_xyxy=found[:, :4].numpy(),
            scores=found[:, 4].numpy(),
            class_ids=truth["classes"],
            names=NAMES,
            size_hw=SIZE_HW,
        )
        evaluator.add(
            image_id=truth["image_id"],
            size_hw=SIZE_HW,
            detections=detections,
            truth_boxes_xyxy=truth["boxes"],
            truth_class_ids=truth["classes"],
        )


def detect_with_targets(model: nn.Module, batch: list[dict[str, Any]]) -> Any:
    return *detect(model, batch), batch


def load_boxes(config: dict[str, Any], batch_size: int | None) -> DataLoader[Any]:
    return DataLoader(Boxes(), batch_size=batch_size, collate_fn=list)


def test_coco_ap_over_two_workers_is_exactly_that_of_one() -> None:
    numbers = [
        make_estimator(
            model=lambda config: Detector(),
            loss=None,
            step=detect_with_targets,
            metrics={"coco": EvaluatorMetric(CocoEvaluator(NAMES), add)},
            workers_per_node=workers,
        ).evaluate(load_boxes, batch_size=2)
        for workers in (1, 2)
    ]
    assert numbers[0]["coco_images"] == IMAGES
    assert 0.1 < numbers[0]["coco_AP"] < 0.9, "a number that could have been another"
    assert numbers[1] == numbers[0]

    evaluator = CocoEvaluator(NAMES)
    batch = [Boxes()[i] for i in range(IMAGES)]
    with torch.no_grad():
        add(evaluator, detect(Detector(), batch)[1], batch)
    assert numbers[1]["coco_AP"] == evaluator.evaluate().AP
