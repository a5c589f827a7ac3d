"""YOLOX on Ray: python examples/yolox_ray.py [--data SET] [--address HOST:PORT] [--workers 2].

Trains a nano with one process a worker on the machines of a Ray cluster, and scores it. Without --address the cluster
in use, in RAY_ADDRESS, or a new one of this machine is taken; without --data scenes are drawn. The data must lie under
the same path on every machine, and the output folder on one that they share.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from boxwright import TrainConfig, train
from boxwright.data.synthetic import generate_scenes


def run(data: Path, out: Path, address: str | None = None, workers: int = 2, **settings: Any) -> dict[str, Any]:
    """Train on a labelled set, and return what came of it."""
    config = TrainConfig(
        model="yolox_nano",
        data=data,
        output_dir=out,
        val=0.2,
        strategy="ray",
        address=address,
        num_processes=workers,
        max_restarts=2,  # a lost worker or machine costs the steps since the last checkpoint
        **settings,
    )
    return train(config).to_dict()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/yolox_ray"))
    parser.add_argument("--address")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.data is None:
            generate_scenes(Path(folder), images=200, seed=0, size_hw=(320, 320))
        result = run(args.data or Path(folder), args.out, args.address, args.workers, steps=args.steps, batch=16)
    print(f"{result['steps']} steps, {result['images_per_s']:.1f} images/s, best {result['best']}: {args.out}")
