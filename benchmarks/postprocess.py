"""python benchmarks/postprocess.py [--rounds 50]

Decoding and suppression of one image's output (3549 rows, 80 classes): ours against a plain numpy one, at the two
thresholds people use. Prints the ratio of the medians of one interleaved run.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from boxwright.core.boxes import area_xyxy
from boxwright.core.timing import hardware_line
from boxwright.detector.postprocess import anchor_grid, postprocess
from turns import interleave

SIZE = (416, 416)
STRIDES = (8, 16, 32)
Array = NDArray[np.float32]


def overlaps(box: Array, others: Array) -> Array:
    """Return the intersection over union of one box with each of the others."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    both = area_xyxy(np.concatenate((low, high), axis=1))
    union = area_xyxy(box) + area_xyxy(others) - both
    return np.divide(both, union, out=np.zeros_like(both), where=union > 0)


def plain_postprocess(output: Array, conf: float, nms: float) -> tuple[Array, Array, NDArray[np.int64]]:
    """Return the same as `postprocess`, written as one would at first: decode all, then suppress class by class."""
    grid, stride = anchor_grid(SIZE, STRIDES)
    centre = (output[:, :2] + grid) * stride
    half = np.exp(output[:, 2:4]) * stride / 2
    boxes = np.concatenate((centre - half, centre + half), axis=1)
    class_ids = output[:, 5:].argmax(1)
    scores = output[:, 4] * output[:, 5:].max(1)
    keep = scores >= conf
    boxes, scores, class_ids = boxes[keep], scores[keep], class_ids[keep]
    kept = []
    for class_id in np.unique(class_ids):
        order = np.flatnonzero(class_ids == class_id)
        order = order[np.argsort(-scores[order], kind="stable")]
        while len(order):
            best, rest = order[0], order[1:]
            kept.append(best)
            order = rest[overlaps(boxes[best], boxes[rest]) <= nms]
    index = np.array(kept, np.int64)
    index = index[np.argsort(-scores[index], kind="stable")]
    return boxes[index], scores[index], class_ids[index]


def make_output(seed: int, objects: int) -> Array:
    """Return an output like a real one: noise of low scores, and clumps of agreeing boxes around each object.

    The official nano on photographs has some 50 rows above 0.25, 300 above 0.01 and 600 above 0.001; this has rather
    more.
    """
    rng = np.random.default_rng(seed)
    grid, stride = anchor_grid(SIZE, STRIDES)
    output = np.zeros((len(grid), 85), np.float32)
    output[:, :4] = rng.normal(0, 0.5, (len(grid), 4))
    output[:, 4] = rng.beta(0.045, 9, len(grid))
    output[:, 5:] = rng.beta(0.3, 6, (len(grid), 80))
    centres = (grid + 0.5) * stride
    for _ in range(objects):
        middle, size = rng.uniform(40, 376, 2), rng.uniform(20, 200, 2)
        near = (np.abs(centres - middle) < 2.2 * stride).all(1)
        count = int(near.sum())
        output[near, :2] = (middle + rng.normal(0, 3, (count, 2))) / stride[near] - grid[near]
        output[near, 2:4] = np.log(size * rng.normal(1, 0.05, (count, 2)).clip(0.8) / stride[near])
        output[near, 4] = rng.beta(0.25, 1.2, count)
        output[near, 5 + int(rng.integers(80))] = rng.uniform(0.5, 0.95, count)
    return output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--objects", type=int, default=12, help="objects in the image")
    args = parser.parse_args()
    output = make_output(0, args.objects)
    print(hardware_line())
    for conf, nms in ((0.25, 0.45), (0.01, 0.65), (0.001, 0.65)):
        ours = postprocess(output, size_hw=SIZE, form="scores", conf=conf, nms=nms)
        plain = plain_postprocess(output, conf, nms)
        if len(ours[0]) != len(plain[0]) or np.abs(ours[1] - plain[1]).max(initial=0) > 1e-5:
            raise SystemExit(f"The two disagree at conf {conf}: {len(ours[0])} and {len(plain[0])} boxes")
        times = interleave(
            {
                "plain numpy": lambda c=conf, n=nms: plain_postprocess(output, c, n),
                "boxwright": lambda c=conf, n=nms: postprocess(output, size_hw=SIZE, form="scores", conf=c, nms=n),
            },
            args.rounds,
        )
        rows = int((output[:, 4] * output[:, 5:].max(1) >= conf).sum())
        print(
            f"conf {conf:<6} nms {nms}: {rows:4} rows, {len(ours[0]):3} boxes kept; plain {times['plain numpy']}; "
            f"ours {times['boxwright']}; {times.speedup('plain numpy', 'boxwright'):.1f}x"
        )


if __name__ == "__main__":
    main()
