"""Run `python benchmarks/compare_coverage.py [--trials 1000] [--images 200] [--population 5000]`.

How often the 95% interval of `boxwright compare` holds the true AP difference: two detectors on a large set of images
give the truth, and each trial compares them on a random sample of these images.
"""

import argparse
import math
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.crowds import make_evaluator

from boxwright.evaluation.coco import CocoEvaluator
from boxwright.evaluation.difference import compare_detections

State = dict[str, NDArray[np.generic]]


def main() -> None:
    parser = argparse.ArgumentParser(description="Coverage of compare's intervals.")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--images", type=int, default=200, help="in each trial")
    parser.add_argument("--population", type=int, default=5000, help="images that the samples are from")
    parser.add_argument("--draws", type=int, default=400)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    first = make_evaluator(0, images=options.population, most=6, strays=3).state()
    second = worsen(first, rng)
    truth = CocoEvaluator.from_state(second).evaluate().AP - CocoEvaluator.from_state(first).evaluate().AP
    held, widths = 0, []
    for _ in range(options.trials):
        images = rng.choice(options.population, options.images, replace=True)
        one, other = (CocoEvaluator.from_state(sample(state, images)) for state in (first, second))
        change = compare_detections(one, other, draws=options.draws).ap
        held += change.low <= truth <= change.high
        widths.append(change.high - change.low)
    part = held / options.trials
    error = math.sqrt(part * (1 - part) / options.trials)
    print(f"true difference {truth:+.4f}; samples of {options.images} images, mean width {np.mean(widths):.4f}")
    print(f"coverage {part:.3f} ± {error:.3f} in {options.trials} trials")


def worsen(state: State, rng: np.random.Generator) -> State:
    """Return what a slightly worse detector finds: some boxes are lost, the others move a little."""
    kept = np.flatnonzero(rng.random(len(state["detection_scores"])) < 0.9)
    worse = {key: values[kept] if key.startswith("detection_") else values for key, values in state.items()}
    boxes = worse["detection_boxes_xywh"]
    return worse | {"detection_boxes_xywh": boxes + rng.normal(0, 1.5, boxes.shape).clip(-4, 4)}


def sample(state: State, images: NDArray[np.int64]) -> State:
    """Return the state of these images, numbered anew."""
    parts = {"names": state["names"], "max_detections": state["max_detections"], "image_ids": np.arange(len(images))}
    for side in ("truth_", "detection_"):
        owner = state[f"{side}image_ids"]
        order = np.argsort(owner, kind="stable")
        edges = np.searchsorted(owner[order], [images, images + 1])
        rows = np.concatenate([order[start:end] for start, end in edges.T.tolist()])
        keys = [key for key in state if key.startswith(side)]
        parts |= {key: state[key][rows] for key in keys}
        parts[f"{side}image_ids"] = np.repeat(np.arange(len(images)), edges[1] - edges[0])
    return parts


if __name__ == "__main__":
    main()
