"""Run `python benchmarks/label_faults.py --data coco_val300/instances.json --results detections.json.gz [--seeds 16]`.

How many of the first 50 suspects of `eval --report` are faults that were planted: of a tenth of the labels, a third is
removed, a third moved by a quarter to a half of its sides, a third gets another class. Beside it, the same for
hotcoco's own list. The detections are a COCO results file. Faults that the set had before count as wrong.
"""

import argparse
import gzip
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.coco_results import read_results
from support.label_faults import Planted, State, are_planted, plant_faults

from boxwright.evaluation.coco import CocoEvaluator, run_engine
from boxwright.evaluation.errors import judge
from boxwright.evaluation.suspects import find_suspects

FIRST = 50


def main() -> None:
    parser = argparse.ArgumentParser(description="Precision of suspected label faults.")
    parser.add_argument("--data", type=Path, required=True, help="a COCO json")
    parser.add_argument("--results", type=Path, required=True, help="a COCO results file, .json or .json.gz")
    parser.add_argument("--seeds", type=int, default=16)
    options = parser.parse_args()
    data = options.results.read_bytes()
    state = read_results(options.data, gzip.decompress(data) if options.results.suffix == ".gz" else data).state()
    ours, theirs = [], []
    listed: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for seed in range(options.seeds):
        changed, planted = plant_faults(state, seed)
        faults, found = suspects(changed, planted)
        ours.append(found.mean())
        listed.update(faults)
        right.update(fault for fault, good in zip(faults, found.tolist(), strict=True) if good)
        theirs.append(hotcoco_suspects(changed, planted).mean())
    for name, values in (("boxwright", ours), ("hotcoco", theirs)):
        print(f"{name:10} {np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})")
    print("boxwright by fault:", ", ".join(f"{name} {right[name]} of {listed[name]}" for name in sorted(listed)))


def suspects(state: State, planted: Planted) -> tuple[list[str], NDArray[np.bool_]]:
    """Return the faults of our first suspects, and which of them were planted."""
    v = judge(CocoEvaluator.from_state(state))
    first = find_suspects(v)[:FIRST]
    boxes = [v.boxes_xywh[s.detection] if s.detection >= 0 else v.truth_boxes_xywh[s.truth] for s in first]
    images = v.image_ids[[s.image for s in first]]
    return [s.fault for s in first], are_planted(planted, images, np.array(boxes))


def hotcoco_suspects(state: State, planted: Planted) -> NDArray[np.bool_]:
    """Return which of hotcoco's first suspects were planted."""
    engine = run_engine(state)
    first = engine.image_diagnostics()["label_errors"][:FIRST]
    found = {entry["id"]: entry for entry in engine.coco_dt.load_anns([s["dt_id"] for s in first])}
    images = np.unique(state["image_ids"])[[s["image_id"] for s in first]]
    return are_planted(planted, images, np.array([found[s["dt_id"]]["bbox"] for s in first]))


if __name__ == "__main__":
    main()
