"""A classifier on a Spark DataFrame: python examples/estimator_classifier.py [--backend spark|ray|subprocess].

Three kinds of points are made up as a table, split, learnt by workers of the chosen backend, scored and predicted. With
`spark` the table is a Spark DataFrame of the active or a local session; otherwise it is a pyarrow Table.
"""

import argparse
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import torch
from torch import nn

from boxwright import Estimator
from boxwright.accel.estimator import Accuracy

KINDS = 3


def make_points(count: int, seed: int) -> dict[str, list[Any]]:
    """Return points around three centres: an id, two features and the kind."""
    numbers = random.Random(seed)
    kinds = [numbers.randrange(KINDS) for _ in range(count)]
    features = [
        [
            numbers.gauss(math.cos(2 * math.pi * kind / KINDS), 0.4),
            numbers.gauss(math.sin(2 * math.pi * kind / KINDS), 0.4),
        ]
        for kind in kinds
    ]
    return {"id": list(range(count)), "features": features, "kind": kinds}


def make_model(config: dict[str, Any]) -> nn.Module:
    """Return the network. Every worker builds its own."""
    return nn.Sequential(nn.Linear(2, config["width"]), nn.ReLU(), nn.Linear(config["width"], KINDS))


def make_optimizer(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    """Return its optimizer."""
    return torch.optim.Adam(model.parameters(), lr=config["lr"])


@contextmanager
def open_tables(backend: str) -> Iterator[Any]:
    """Give a function that makes a table of columns: a Spark DataFrame's or pyarrow's."""
    if backend != "spark":
        yield pa.table
        return
    from pyspark.sql import SparkSession

    had_one = SparkSession.getActiveSession() is not None
    session = SparkSession.builder.appName("classifier").config("spark.ui.enabled", "false").getOrCreate()
    try:
        yield lambda columns: session.createDataFrame(
            list(zip(*columns.values(), strict=True)), "id long, features array<double>, kind long"
        )
    finally:
        if not had_one:
            session.stop()


def run(backend: str, workers: int, epochs: int, points: int) -> dict[str, float]:
    """Train, score and predict; return the accuracy, as scored and as counted from the predictions."""
    with (
        open_tables(backend) as make_table,
        Estimator.from_torch(
            model=make_model,
            optimizer=make_optimizer,
            loss=nn.CrossEntropyLoss(),
            metrics={"accuracy": Accuracy()},
            backend=backend,
            workers_per_node=workers,
            config={"width": 16, "lr": 0.02},
        ) as estimator,
    ):
        train, test = make_table(make_points(points, seed=1)), make_table(make_points(points // 4, seed=2))
        columns = {"feature_cols": ["features"], "label_cols": ["kind"]}
        for row in estimator.fit(train, epochs=epochs, batch_size=32, validation_data=test, **columns):
            print(f"epoch {row['epoch']}: loss {row['train_loss']:.3f}, accuracy {row['val_accuracy']:.3f}")
        scored = estimator.evaluate(test, batch_size=64, **columns)
        predicted = estimator.predict(test, batch_size=64, feature_cols=["features"])
        table = predicted.toArrow() if backend == "spark" else predicted
        chosen = [max(range(KINDS), key=row.__getitem__) for row in table["prediction"].to_pylist()]
        right = sum(a == b for a, b in zip(chosen, table["kind"].to_pylist(), strict=True))
    return {"scored": scored["accuracy"], "counted": right / len(chosen)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["spark", "ray", "subprocess"], default="spark")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--points", type=int, default=800)
    args = parser.parse_args()
    result = run(args.backend, args.workers, args.epochs, args.points)
    print(f"accuracy {result['scored']:.3f}, from the predictions {result['counted']:.3f}")
