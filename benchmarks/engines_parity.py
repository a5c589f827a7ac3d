"""python benchmarks/engines_parity.py [--data bccd] [--steps 300] [--size 320] [--strategies subprocess ray spark]

One training of YOLOX-nano with two processes and the same seed on each engine: AP of each, its distance from the first
one's, and the largest difference between their weights.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from boxwright import TrainConfig, train
from boxwright.accel.checkpoint import load_checkpoint
from boxwright.core.timing import hardware_line
from boxwright.data.synthetic import generate_scenes


def distance(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """Return the largest difference between two sets of weights."""
    pairs = ((value, theirs[name]) for name, value in ours.items() if value.is_floating_point())
    return max(float((a.float() - b.float()).abs().max()) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a labelled set (default: scenes drawn for it)")
    parser.add_argument("--ckpt", type=Path, help="weights to start from")
    parser.add_argument("--val", type=float, default=0.2, help="part held out; 0 for a set that has parts of its own")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=160)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--strategies", nargs="+", default=["subprocess", "ray", "spark"])
    args = parser.parse_args()
    print(f"{hardware_line()}; torch {torch.__version__}")
    first: tuple[float, dict[str, Any]] | None = None
    with tempfile.TemporaryDirectory() as scratch:
        data = args.data or Path(scratch) / "scenes"
        if args.data is None:
            generate_scenes(data, images=120, seed=0, size_hw=(args.size, args.size))
        for strategy in args.strategies:
            out = Path(scratch) / strategy
            start_s = time.perf_counter()
            result = train(
                TrainConfig(
                    model="yolox_nano",
                    data=data,
                    ckpt=args.ckpt,
                    output_dir=out,
                    val=args.val or None,
                    batch=args.batch,
                    steps=args.steps,
                    size_hw=(args.size, args.size),
                    strategy=strategy,
                    num_processes=args.processes,
                    seed=args.seed,
                    max_error_rate=1.0,
                )
            )
            whole_s = time.perf_counter() - start_s
            weights = load_checkpoint(out / "weights" / "last.pt")["model"]
            score = float(result.best["AP"])
            first = first or (score, weights)
            print(
                f"{strategy:12} AP {100 * score:6.2f}   {100 * (score - first[0]):+.2f} points   "
                f"weights differ by {distance(weights, first[1]):.1e}   {whole_s:6.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
