"""Engine `spark`: one task per part, by `mapInArrow`; Spark's own Python workers keep the model between tasks."""

import pickle
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from boxwright.core import catalogue
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import UsageError, WorkerError
from boxwright.tasks.batch.config import BatchConfig
from boxwright.tasks.batch.inputs import Part
from boxwright.tasks.batch.worker import ModelFiles, PartResult, WorkerSettings, run_part

_TURN_S = 0.5
_FAILURES = (Py4JError, PySparkException, OSError)
_PICKLED = pa.schema([("result", pa.binary())])


def run_parts(
    settings: WorkerSettings, model: ModelFiles, parts: list[Part], report: Callable[[int], None]
) -> list[PartResult]:
    """Return the result of each part; the session decides how many run at once.

    Raises:
        UsageError: `workers` or `threads` don't fit the active session.
        WorkerError: Spark gave up the job.
    """
    config = settings.config
    active = SparkContext._active_spark_context is not None
    if active and config.workers is not None:
        raise UsageError(
            f"workers={config.workers!r}, but a Spark session is active, and its executors decide how many tasks run "
            "at once. Leave workers out, or stop that session first."
        )
    with catalogue.load("engine", "spark")(config.master, suggested=_session_settings(config)) as context:
        granted = int(context.getConf().get("spark.task.cpus", "1"))
        if config.threads not in (None, granted):
            raise UsageError(
                f"threads={config.threads!r}, but the active session was started with spark.task.cpus={granted}. "
                "Leave it out, or start the session with that setting."
            )
        settings = replace(settings, threads=granted if model.takes_threads else None)
        return _Job(context, settings, model, parts).wait(report)


def _session_settings(config: BatchConfig) -> dict[str, str]:
    """Return settings that give a session of our own room for the workers."""
    threads = config.threads or 1
    workers = config.workers or max(1, len(read_cpu().allowed) // threads)
    settings = {"spark.task.cpus": str(threads)}
    if config.master is None:
        settings["spark.master"] = f"local[{workers * threads}]"
    elif config.workers is not None and config.master.startswith("local"):
        raise UsageError(
            f"workers={config.workers!r}, but {config.master!r} says how many there are. Give one of them."
        )
    elif config.workers is not None and config.master.startswith("spark:"):
        settings["spark.cores.max"] = str(workers * threads)
    elif config.workers is not None:
        settings |= {"spark.executor.instances": str(workers), "spark.executor.cores": str(threads)}
    return settings


class _Job:
    """A Spark job in a thread, so that the program handles Ctrl-C and can report progress."""

    def __init__(self, context: SparkContext, settings: WorkerSettings, model: ModelFiles, parts: list[Part]) -> None:
        self._context, self._settings, self._parts = context, settings, parts
        self._group = f"boxwright-{uuid.uuid4()}"
        self._model = context.broadcast(model)

    def wait(self, report: Callable[[int], None]) -> list[PartResult]:
        """Return the results when the job has ended."""
        with ThreadPoolExecutor(1) as pool:
            rows = pool.submit(self._collect)
            reported = 0
            try:
                while not wait([rows], timeout=_TURN_S).done:
                    done = self._count_done()
                    if done > reported:
                        reported = done
                        report(done)
                found: list[PartResult] = [pickle.loads(row["result"]) for row in rows.result()]
            except _FAILURES as error:
                raise WorkerError(
                    f"Spark gave up the job: {error}\nWhat is finished stays in {self._settings.out!r}: the same "
                    "command resumes with the rest."
                ) from error
            finally:
                if not rows.done():
                    with suppress(*_FAILURES):
                        self._context.cancelJobGroup(self._group)
                with suppress(*_FAILURES):
                    self._model.destroy()
        if reported < len(found):
            report(len(found))
        return found

    def _collect(self) -> list[Any]:
        settings, model = self._settings, self._model

        def apply(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                for part in batch["part"].to_pylist():
                    result = run_part(settings, lambda: model.value, pickle.loads(part))
                    yield pa.RecordBatch.from_pylist([{"result": pickle.dumps(result)}], schema=_PICKLED)

        self._context.setJobGroup(self._group, "boxwright predict", interruptOnCancel=True)
        session = SparkSession.builder.getOrCreate()
        tasks = self._context.parallelize([(pickle.dumps(part),) for part in self._parts], len(self._parts))
        rows: list[Any] = session.createDataFrame(tasks, "part binary").mapInArrow(apply, "result binary").collect()
        return rows

    def _count_done(self) -> int:
        tracker = self._context.statusTracker()
        done = 0
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            stages = [tracker.getStageInfo(stage) for stage in (info.stageIds if info is not None else ())]
            done += sum(stage.numCompletedTasks for stage in stages if stage is not None)
        return min(done, len(self._parts))
