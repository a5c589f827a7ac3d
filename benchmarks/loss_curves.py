"""python benchmarks/loss_curves.py --out curves.png --noise gpu_0 gpu_1 gpu_2 --run cpu_0

Does a run learn as others do? Run folders of `boxwright train` go in: `--noise` are runs that differ in the seed alone,
`--run` is the one in question. Printed are the final AP and AP50 of each, and how far the smoothed loss of the run is
from the mean of the others, beside how far those are from each other. A picture of the losses goes to --out.
"""

import argparse
import json
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SMOOTH = 9  # reports (of 10 steps each in the documented runs) that one point of a curve is the mean of


def read(folder: Path) -> tuple[NDArray[np.int64], NDArray[np.float64], dict[str, float]]:
    """Return the steps, the losses, and the last scores of a run; of a step reported twice the later one counts."""
    losses: dict[int, float] = {}
    scores: dict[str, float] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        if "total" in values:
            losses[values["step"]] = values["total"]
        elif "AP" in values:
            scores = values
    steps = sorted(losses)
    return np.array(steps), np.array([losses[s] for s in steps]), scores


def smooth(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return moving means, as many as there are whole windows."""
    return np.convolve(losses, np.ones(SMOOTH) / SMOOTH, mode="valid")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=Path, nargs="+", required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--title", default="")
    args = parser.parse_args()
    figure, axes = plt.subplots(figsize=(7, 4))
    curves = []
    for folder in (*args.noise, args.run):
        steps, losses, scores = read(folder)
        curves.append(smooth(losses))
        own = folder == args.run
        axes.plot(
            steps[SMOOTH // 2 : len(steps) - SMOOTH // 2],
            curves[-1],
            label=folder.name,
            color="black" if own else None,
            linewidth=2 if own else 1,
        )
        print(f"{folder.name:16} AP {scores['AP']:.3f}  AP50 {scores['AP50']:.3f}  last loss {curves[-1][-1]:.3f}")
    others = np.stack(curves[:-1])
    mean = others.mean(axis=0)
    apart = np.abs(curves[-1] - mean) / mean
    among = np.abs(others[:, None] - others[None]).max(axis=(0, 1)) / mean
    print(f"run against the mean of the others: median {np.median(apart):.1%}, largest {apart.max():.1%}")
    print(f"the others among themselves:        median {np.median(among):.1%}, largest {among.max():.1%}")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.set_yscale("log")
    axes.set_title(args.title)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(args.out, dpi=80)


if __name__ == "__main__":
    main()
