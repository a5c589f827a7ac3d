"""Run `python benchmarks/error_analysis.py [--images 5000] [--detections 40]`.

Time of the whole error analysis (`boxwright.evaluation.analysis`: COCO numbers, TIDE costs, curves, confusion matrix,
calibration, slices, suspected label faults) as a ratio to tidecv's TIDE costs alone, on the same boxes, and how far the
costs are apart. Needs tidecv, which Boxwright does not: pip install --no-deps tidecv appdirs seaborn
"""

import argparse
import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.crowds import make_evaluator, tidecv_costs

from boxwright.evaluation.analysis import analyse


def main() -> None:
    parser = argparse.ArgumentParser(description="Error analysis: time against tidecv.")
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--detections", type=int, default=40, help="on average in each image")
    options = parser.parse_args()
    if find_spec("tidecv") is None:
        print("tidecv is not installed: there is nothing to compare with.")
        return
    # Each image has 0 to 14 truth boxes, twice as many copies, and strays.
    evaluator = make_evaluator(0, images=options.images, most=15, strays=max(options.detections - 14, 0))
    count = len(evaluator.state()["detection_scores"])
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    print(f"{options.images} images, {count} detections")
    start = perf_counter()
    analysis = analyse(evaluator)
    ours_s = perf_counter() - start
    start = perf_counter()
    expected = tidecv_costs(evaluator)
    theirs_s = perf_counter() - start
    costs = analysis.costs.cost | {"AP": analysis.costs.ap}
    apart = max(abs(costs[name] - value) for name, value in expected.items())
    print(f"tidecv     {theirs_s:7.2f} s   1.0x   TIDE costs alone")
    print(
        f"boxwright  {ours_s:7.2f} s {theirs_s / ours_s:5.1f}x   everything; apart by at most {100 * apart:.1e} points"
    )


if __name__ == "__main__":
    main()
