"""python tests/chaos/engines.py [--moments 10] [--engines ray spark]

Kill workers, Ray nodes and Spark executors at seeded steps of a small training, and check that each run ends with the
weights of an undisturbed one. Prints one line per kill; exits with 1 if any run did not recover. Too slow for CI, where
three workers, nodes and executors are killed (more of them in `make test-engines`). The times are not a measurement.
"""

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.clusters import RayCluster, start_spark
from support.faults import Learning, Victim, find_orphans, learn_undisturbed

from boxwright.core.errors import WorkerError
from boxwright.launchers.base import Launcher
from boxwright.launchers.placement import make_workers_anywhere
from boxwright.launchers.restart import Restart

WORKERS = make_workers_anywhere(2)
ONCE = Restart(max_restarts=1)


@contextmanager
def on_ray() -> Iterator[tuple[Launcher, RayCluster]]:
    from boxwright.launchers.ray_ import RayLauncher, open_ray

    cluster = RayCluster()
    try:
        cluster.complete()
        with open_ray(cluster.address):
            yield RayLauncher(cores_per_worker=1, restart=ONCE), cluster
    finally:
        cluster.close()


@contextmanager
def on_spark(folder: Path) -> Iterator[Launcher]:
    from boxwright.launchers.spark_ import SparkLauncher
    from boxwright.launchers.spark_session import open_spark

    with start_spark(folder) as master, open_spark(master, {"spark.executor.memory": "512m"}):
        yield SparkLauncher(restart=ONCE)


def try_it(launcher: Launcher, victim: Victim, seed: int, expected: list[float]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        job = Learning.with_seed(Path(folder), victim, seed)
        start_s = time.monotonic()
        try:
            weights, attempts = launcher.run(job, WORKERS)
            outcome = "recovered" if (weights, attempts) == (expected, 1) else f"differs (attempt {attempts})"
        except WorkerError as error:
            outcome = f"failed: {str(error).partition(chr(10))[0]}"
        orphans = find_orphans(Path(folder))
    if orphans:
        outcome += f", orphans {orphans}"
    took_s = time.monotonic() - start_s
    print(
        f"{launcher.name:6} {victim:9} seed {seed:3} step {job.moments[0][0]:2}: {outcome} ({took_s:.0f} s)", flush=True
    )
    return outcome == "recovered"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--engines", nargs="+", default=["ray", "spark"], choices=["ray", "spark"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        expected = learn_undisturbed(Path(folder))
    results = []
    if "ray" in args.engines:
        with on_ray() as (launcher, cluster):
            for seed in range(args.moments):
                for victim in ("rank", "node"):
                    cluster.complete()
                    results.append(try_it(launcher, victim, seed, expected))
    if "spark" in args.engines:
        with tempfile.TemporaryDirectory() as folder, on_spark(Path(folder)) as launcher:
            moments = itertools.product(range(args.moments), ("rank", "executor"))
            results += [try_it(launcher, victim, seed, expected) for seed, victim in moments]
    print(f"{sum(results)} of {len(results)} recovered")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
