"""Batch inference: python examples/batch_inference.py MODEL DATA --out FOLDER [--engine local|ray|spark] [--workers 2].

Predicts every image of a folder or of parquet files into a folder of parquet files, then counts what was found. Stop it
and start it again: what is finished is not done again. The same as `boxwright predict MODEL DATA --engine …`.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from boxwright import Thresholds
from boxwright.tasks.batch.config import BatchConfig
from boxwright.tasks.batch.job import predict_in_batches


def run(model: Path, data: Path, out: Path, **settings: Any) -> dict[str, int]:
    """Predict, and return how often each class was found, and under "unreadable" how many images were."""
    config = BatchConfig(model=model, data=data, out=out, thresholds=Thresholds(conf=0.4), **settings)
    result = predict_in_batches(config, lambda done, total: print(f"{done} of {total} parts"))
    print(f"{result.images} images, {result.skipped} of {result.parts} parts were there")
    table = pq.read_table(out, columns=["names", "error"])
    counts: Counter[str] = Counter(pc.list_flatten(table["names"]).to_pylist())
    return {**counts, "unreadable": len(table) - table["error"].null_count}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--engine", choices=["local", "ray", "spark"], default="local")
    parser.add_argument("--workers", type=int)
    args = parser.parse_args()
    print(run(args.model, args.data, args.out, engine=args.engine, workers=args.workers))
