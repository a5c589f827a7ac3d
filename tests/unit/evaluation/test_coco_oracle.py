"""Our numbers must be those of pycocotools, to the last bit."""

import contextlib
import io
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from boxwright.core.types import Detections
from boxwright.evaluation.coco import CocoEvaluator

NAMES = ("cat", "dog", "cow")
SIZE_HW = (400, 400)
NUMBERS = (
    "AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large",
    "AR1", "AR10", "AR100", "AR_small", "AR_medium", "AR_large",
)  # fmt: skip


@dataclass
class Image:
    """Truth rows: x1, y1, x2, y2, class id, crowd, part of box area. Found rows: x1, y1, x2, y2, class id, score."""

    image_id: int
    truth: list[tuple[float, ...]] = field(default_factory=list)
    found: list[tuple[float, ...]] = field(default_factory=list)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        # Detections are float32: the oracle must see the same rounded values.
        found = np.array(self.found, np.float32).reshape(-1, 6).astype(np.float64)
        return np.array(self.truth, np.float64).reshape(-1, 7), found


def xywh_and_area(row: np.ndarray) -> tuple[list[float], float]:
    width, height = row[2] - row[0], row[3] - row[1]
    return [float(row[0]), float(row[1]), float(width), float(height)], float(width * height)


def oracle(images: list[Image], max_detections: tuple[int, int, int]) -> tuple[COCOeval, list[str]]:
    """Return pycocotools after the run, and the lines of its summary."""
    annotations, results = [], []
    for image in images:
        truth, found = image.arrays()
        for row in truth:
            box, area = xywh_and_area(row)
            annotations.append(
                {
                    "id": len(annotations) + 1, "image_id": image.image_id, "category_id": int(row[4]) + 1,
                    "bbox": box, "area": area * row[6], "iscrowd": int(row[5]),
                }
            )  # fmt: skip
        for row in found:
            box, area = xywh_and_area(row)
            results.append(
                {
                    "id": len(results) + 1, "image_id": image.image_id, "category_id": int(row[4]) + 1,
                    "bbox": box, "area": area, "iscrowd": 0, "score": float(row[5]),
                }
            )  # fmt: skip
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        sets = []
        for entries in (annotations, results):
            coco = COCO()
            coco.dataset = {
                "images": [{"id": image.image_id} for image in images],
                "categories": [{"id": i + 1, "name": name} for i, name in enumerate(NAMES)],
                "annotations": entries,
            }
            coco.createIndex()
            sets.append(coco)
        run = COCOeval(*sets, "bbox")
        run.params.maxDets = list(max_detections)
        run.evaluate()
        run.accumulate()
        run.summarize()
    return run, printed.getvalue().splitlines()[-12:]


def ours(images: list[Image], max_detections: tuple[int, int, int]) -> CocoEvaluator:
    evaluator = CocoEvaluator(NAMES, max_detections=max_detections)
    for image in images:
        truth, found = image.arrays()
        evaluator.add(
            image_id=image.image_id,
            size_hw=SIZE_HW,
            truth_boxes_xyxy=truth[:, :4],
            truth_class_ids=truth[:, 4].astype(int),
            truth_crowd=truth[:, 5] > 0,
            truth_areas=[xywh_and_area(row)[1] * row[6] for row in truth],
            detections=Detections(
                boxes_xyxy=found[:, :4], scores=found[:, 5], class_ids=found[:, 4], names=NAMES, size_hw=SIZE_HW
            ),
        )
    return evaluator


def mean_of_counted(values: np.ndarray) -> float:
    return float(np.mean(values[values > -1])) if (values > -1).any() else -1.0


# A coarse grid and few scores: equal scores, equal boxes and IoUs exactly on a threshold are then common.
corners = st.tuples(*[st.integers(0, 12)] * 2, *[st.integers(0, 12)] * 2).map(
    lambda t: (t[0] * 10.0, t[1] * 10.0, (t[0] + t[2]) * 10.0, (t[1] + t[3]) * 10.0)
)
class_ids = st.integers(0, len(NAMES) - 1)
truth_rows = st.tuples(corners, class_ids, st.integers(0, 1), st.sampled_from((1.0, 0.5))).map(
    lambda t: (*t[0], *t[1:])
)
found_rows = st.tuples(corners, class_ids, st.sampled_from((0.1, 0.5, 0.9))).map(lambda t: (*t[0], *t[1:]))


@st.composite
def image_sets(draw: st.DrawFn) -> list[Image]:
    images = []
    for image_id in draw(st.lists(st.integers(0, 10**12), min_size=1, max_size=5, unique=True)):
        truth = draw(st.lists(truth_rows, max_size=5))
        hits = [(*row[:5], draw(st.sampled_from((0.1, 0.5, 0.9)))) for row in truth if draw(st.booleans())]
        found = draw(st.permutations(hits + draw(st.lists(found_rows, max_size=6))))
        images.append(Image(image_id, truth, found))
    return images


@settings(max_examples=150, deadline=None)
@given(image_sets())
def test_the_numbers_of_any_small_set_equal_those_of_pycocotools(images: list[Image]) -> None:
    run, _ = oracle(images, (1, 10, 100))
    metrics = ours(images, (1, 10, 100)).evaluate()
    assert [getattr(metrics, name) for name in NUMBERS] == run.stats.tolist()
    for class_id, name in enumerate(NAMES):
        assert mean_of_counted(run.eval["precision"][:, :, class_id, 0, 2]) == metrics.per_class[name].AP


@settings(max_examples=75, deadline=None)
@given(image_sets())
def test_other_limits_on_detections_cut_where_pycocotools_cuts(images: list[Image]) -> None:
    run, _ = oracle(images, (1, 2, 3))
    metrics = ours(images, (1, 2, 3)).evaluate()
    # The summary of pycocotools knows no AP for other limits than 100, its tables do.
    precision, recall = run.eval["precision"], run.eval["recall"]
    assert mean_of_counted(precision[:, :, :, 0, 2]) == metrics.AP
    assert metrics.AP_small == mean_of_counted(precision[:, :, :, 1, 2])
    assert [mean_of_counted(recall[:, :, 0, i]) for i in range(3)] == [metrics.AR1, metrics.AR10, metrics.AR100]


def crowded_set(seed: int) -> list[Image]:
    """Return images with up to 300 detections of a class, noisy copies of truth and strays."""
    random = np.random.default_rng(seed)
    images = []
    for image_id in random.choice(1000, size=6, replace=False).tolist():
        image = Image(image_id)
        for _ in range(random.integers(0, 25)):
            x, y, width, height = random.uniform(0, 150, 4)
            part, crowd = random.uniform(0.3, 1), int(random.random() < 0.15)
            image.truth.append((x, y, x + width, y + height, int(random.integers(0, 2)), crowd, part))
        for _ in range(random.choice((0, 20, 600))):
            box = random.uniform((0, 0, 150, 150), (150, 150, 300, 300))
            class_id = int(random.integers(0, 2))
            if image.truth and random.random() < 0.6:
                row = image.truth[random.integers(len(image.truth))]
                box, class_id = np.array(row[:4]) + random.normal(0, 4, 4), int(row[4])
            image.found.append((*box, class_id, round(float(random.random()), int(random.choice((1, 6))))))
        images.append(image)
    return images


@pytest.mark.parametrize("seed", range(12))
def test_crowded_images_give_the_numbers_and_the_lines_of_pycocotools(seed: int) -> None:
    images = crowded_set(seed)
    run, lines = oracle(images, (1, 10, 100))
    metrics = ours(images, (1, 10, 100)).evaluate()
    assert [getattr(metrics, name) for name in NUMBERS] == run.stats.tolist()
    assert metrics.lines() == lines
    assert metrics.per_class["cow"].AP == -1.0


def test_the_crowded_sets_reach_the_limit_of_100_detections_of_a_class() -> None:
    most = max(
        sum(row[4] == class_id for row in image.found)
        for seed in range(12)
        for image in crowded_set(seed)
        for class_id in (0, 1)
    )
    assert most > 200


@settings(max_examples=50, deadline=None)
@given(image_sets(), st.randoms(use_true_random=False))
def test_shards_merged_in_any_order_give_the_numbers_of_the_whole(images: list[Image], random: Random) -> None:
    whole = ours(images, (1, 10, 100)).evaluate()
    shards = [ours(images[start::3], (1, 10, 100)) for start in range(3)]
    random.shuffle(shards)
    total = CocoEvaluator.from_state(shards[0].state())
    for shard in shards[1:]:
        total.merge(shard)
    assert total.evaluate() == whole
