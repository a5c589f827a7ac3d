"""Kills workers, Ray nodes and Spark executors at seeded steps of a small training, and commands on a cluster."""

import itertools
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from chaos.commands import kill_at_moments
from chaos.jobs import make_jobs
from support.clusters import RayCluster, start_spark
from support.faults import Learning, Victim, find_orphans, learn_undisturbed

from boxwright.core.errors import WorkerError
from boxwright.launchers.base import Launcher
from boxwright.launchers.placement import make_workers_anywhere
from boxwright.launchers.restart import Restart

WORKERS = make_workers_anywhere(2)
ONCE = Restart(max_restarts=1)


@contextmanager
def ray_nodes() -> Iterator[RayCluster]:
    cluster = RayCluster()
    try:
        cluster.complete()
        yield cluster
    finally:
        cluster.close()


@contextmanager
def on_spark(folder: Path) -> Iterator[Launcher]:
    from boxwright.launchers.spark_ import SparkLauncher
    from boxwright.launchers.spark_session import open_spark

    with start_spark(folder) as master, open_spark(master, {"spark.executor.memory": "512m"}):
        yield SparkLauncher(restart=ONCE)


def try_it(launcher: Launcher, victim: Victim, seed: int, expected: list[float]) -> bool:
    """Run a training in which a part is killed once; return whether its weights equal those of an uninterrupted one."""
    with tempfile.TemporaryDirectory() as folder:
        job = Learning.with_seed(Path(folder), victim, seed)
        start_s = time.monotonic()
        try:
            weights, attempts = launcher.run(job, WORKERS)
            outcome = "well" if (weights, attempts) == (expected, 1) else f"differs (attempt {attempts})"
        except WorkerError as error:
            outcome = f"failed: {str(error).partition(chr(10))[0]}"
        orphans = find_orphans(Path(folder))
    if orphans:
        outcome += f", orphans {orphans}"
    took_s = time.monotonic() - start_s
    print(f"{launcher.name} train: {victim} at step {job.moments[0][0]}: {outcome} ({took_s:.0f} s)", flush=True)
    return outcome == "well"


def kill_on_ray(stack: ExitStack, inputs: Path, kinds: list[str], *, seed: int, moments: int) -> dict[str, list[bool]]:
    """Kill ranks and nodes of a training, then the commands and workers of a batch prediction, on one cluster.

    Args:
        stack: closes the cluster.
        inputs: the files of the jobs.
        kinds: "Ray train" and "Ray batch", or one of them.
        seed: chooses the moments.
        moments: kills of a training; a batch prediction has half as many, and Spark's the other half.
    """
    from boxwright.launchers.ray_ import RayLauncher, open_ray

    cluster = stack.enter_context(ray_nodes())
    results: dict[str, list[bool]] = {}
    if "Ray batch" in kinds:
        job = next(job for job in make_jobs(inputs, cluster.address) if job.name == "Ray batch")
        results[job.name] = kill_at_moments(job, inputs, seed=seed, moments=moments // 2)
    if "Ray train" in kinds:
        expected = _learn()
        with open_ray(cluster.address):
            launcher = RayLauncher(cores_per_worker=1, restart=ONCE)
            results["Ray train"] = []
            for victim, at in _plan(("rank", "node"), seed, moments):
                cluster.complete()
                results["Ray train"].append(try_it(launcher, victim, at, expected))
    return results


def kill_on_spark(*, seed: int, moments: int) -> list[bool]:
    """Kill ranks and executors of a training."""
    expected = _learn()
    with tempfile.TemporaryDirectory() as folder, on_spark(Path(folder)) as launcher:
        return [try_it(launcher, victim, at, expected) for victim, at in _plan(("rank", "executor"), seed, moments)]


def _plan(victims: tuple[Victim, ...], seed: int, moments: int) -> Iterator[tuple[Victim, int]]:
    turns = itertools.cycle(victims)
    return ((next(turns), 1000 * seed + number // len(victims)) for number in range(moments))


def _learn() -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        return learn_undisturbed(Path(folder))
