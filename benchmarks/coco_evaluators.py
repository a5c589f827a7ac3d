"""Run `python benchmarks/coco_evaluators.py [--images 1000] [--rounds 3]`.

Time of COCO AP from what a detector gives (arrays, image by image) to the 12 numbers, as a ratio to pycocotools in the
same run: Boxwright's evaluator (on hotcoco) and faster-coco-eval. Prints how far the numbers are apart, too.
Needs pycocotools and faster-coco-eval, which Boxwright itself does not.
"""

import argparse
import contextlib
import io
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import faster_coco_eval
import numpy as np
import pycocotools.coco
import pycocotools.cocoeval

from boxwright.core.boxes import xyxy_to_xywh
from boxwright.core.types import Detections
from boxwright.evaluation.coco import CocoEvaluator

CLASSES = 80
NAMES = tuple(f"class {i}" for i in range(CLASSES))
SIZE_HW = (480, 640)
NUMBERS = (
    "AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large",
    "AR1", "AR10", "AR100", "AR_small", "AR_medium", "AR_large",
)  # fmt: skip

Case = tuple[np.ndarray, np.ndarray, np.ndarray, Detections]  # truth boxes, truth classes, crowd, detections


def make_case(random: np.random.Generator) -> Case:
    """Return one image with about 7 truth boxes and 60 detections: noisy copies of truth, and strays."""
    count = int(random.integers(0, 15))
    low = random.uniform(0, 400, (count, 2))
    truth = np.concatenate((low, low + random.lognormal(4, 0.8, (count, 2))), axis=1)
    classes = random.integers(0, CLASSES, count)
    strays = int(random.integers(40, 60))
    copied = random.integers(0, count, 2 * count) if count else np.zeros(0, int)
    stray_low = random.uniform(0, 400, (strays, 2))
    boxes = np.concatenate(
        (
            truth[copied] + random.normal(0, 5, (len(copied), 4)),
            np.concatenate((stray_low, stray_low + random.lognormal(4, 0.8, (strays, 2))), axis=1),
        )
    )
    found = Detections(
        boxes_xyxy=boxes,
        scores=np.concatenate((random.uniform(0.2, 1, len(copied)), random.uniform(0.01, 0.5, strays))),
        class_ids=np.concatenate((classes[copied], random.integers(0, CLASSES, strays))),
        names=NAMES,
        size_hw=SIZE_HW,
    )
    return truth, classes, random.random(count) < 0.02, found


def with_boxwright(cases: Sequence[Case]) -> list[float]:
    evaluator = CocoEvaluator(NAMES)
    for image_id, (truth, classes, crowd, found) in enumerate(cases):
        evaluator.add(
            image_id=image_id,
            size_hw=SIZE_HW,
            truth_boxes_xyxy=truth,
            truth_class_ids=classes,
            truth_crowd=crowd,
            detections=found,
        )
    metrics = evaluator.evaluate()
    return [getattr(metrics, name) for name in NUMBERS]


def as_coco(cases: Sequence[Case]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for image_id, (truth, classes, crowd, found) in enumerate(cases):
        for box, class_id, is_crowd in zip(xyxy_to_xywh(truth).tolist(), classes.tolist(), crowd.tolist(), strict=True):
            annotations.append(
                {
                    "id": len(annotations) + 1, "image_id": image_id, "category_id": class_id, "bbox": box,
                    "area": box[2] * box[3], "iscrowd": int(is_crowd),
                }
            )  # fmt: skip
        boxes = xyxy_to_xywh(found.boxes_xyxy.astype(np.float64))
        for box, class_id, score in zip(boxes.tolist(), found.class_ids.tolist(), found.scores.tolist(), strict=True):
            results.append({"image_id": image_id, "category_id": class_id, "bbox": box, "score": score})
    height, width = SIZE_HW
    truth_set = {
        "info": {},
        "images": [{"id": i, "height": height, "width": width} for i in range(len(cases))],
        "categories": [{"id": i, "name": name} for i, name in enumerate(NAMES)],
        "annotations": annotations,
    }
    return truth_set, results


def with_pycocotools(cases: Sequence[Case]) -> list[float]:
    dataset, results = as_coco(cases)
    truth = pycocotools.coco.COCO()
    truth.dataset = dataset
    truth.createIndex()
    run = pycocotools.cocoeval.COCOeval(truth, truth.loadRes(results), "bbox")
    run.evaluate()
    run.accumulate()
    run.summarize()
    return [float(v) for v in run.stats]


def with_faster_coco_eval(cases: Sequence[Case]) -> list[float]:
    dataset, results = as_coco(cases)
    truth = faster_coco_eval.COCO(dataset)
    run = faster_coco_eval.COCOeval_faster(truth, truth.loadRes(results), "bbox")
    run.evaluate()
    run.accumulate()
    run.summarize()
    return [float(v) for v in run.stats[:12]]


def best_time_s(job: Callable[[Sequence[Case]], list[float]], cases: Sequence[Case], rounds: int) -> tuple[float, Any]:
    times = []
    numbers: list[float] = []
    for _ in range(rounds):
        with contextlib.redirect_stdout(io.StringIO()):
            start = perf_counter()
            numbers = job(cases)
            times.append(perf_counter() - start)
    return min(times), np.array(numbers)


def hardware() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return f"{platform.platform()}, {model}, {os.cpu_count()} CPUs, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description="COCO AP: time against pycocotools.")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many runs counts")
    options = parser.parse_args()
    random = np.random.default_rng(0)
    cases = [make_case(random) for _ in range(options.images)]
    print(hardware())
    truths, found = sum(len(case[0]) for case in cases), sum(len(case[3]) for case in cases)
    print(f"{len(cases)} images, {truths} truth boxes, {found} detections, {CLASSES} classes; best of {options.rounds}")
    base_s, expected = best_time_s(with_pycocotools, cases, options.rounds)
    print(f"pycocotools       {base_s * 1000:9.0f} ms    1.0x    AP {expected[0]:.6f}")
    for name, job in (("faster-coco-eval", with_faster_coco_eval), ("boxwright", with_boxwright)):
        time_s, numbers = best_time_s(job, cases, options.rounds)
        apart = np.abs(numbers - expected).max()
        print(f"{name:<17} {time_s * 1000:9.0f} ms {base_s / time_s:6.1f}x    12 numbers apart by at most {apart:.1e}")


if __name__ == "__main__":
    main()
