"""Strategy `spark`: each worker is a fresh child process of a barrier task.

The active SparkSession is used. Otherwise one is opened for the launch. Spark does not retry a failed barrier stage:
the driver does. Local and standalone masters are tested; YARN and Kubernetes run the same code, untested.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

from pyspark import BarrierTaskContext, InheritableThread, SparkContext

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import UsageError
from boxwright.core.world import World
from boxwright.launchers.agent import serve
from boxwright.launchers.base import WorkerSpec
from boxwright.launchers.driver import run_on_engine
from boxwright.launchers.engine import EngineLauncher, Placement
from boxwright.launchers.spark_session import FAILURES, LOOPBACK, open_spark
from boxwright.launchers.wire import Invitation, Listener

T = TypeVar("T")

_TURN_S = 0.25
_LEAVE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkLauncher(EngineLauncher):
    """Runs a job on the executors of a Spark application; Boxwright must be installed on their machines.

    `cores_per_worker` is `spark.task.cpus`.

    Attributes:
        master: Spark's master URL; None for the active session's, else for `local` on this machine.

    `EngineLauncher` has the other attributes.
    """

    name: ClassVar[str] = "spark"

    master: str | None = None

    def run(self, job: Callable[[World], T], workers: Sequence[WorkerSpec]) -> T:
        """Call `job` in every worker with its world, and return the first worker's result.

        Raises:
            UsageError: the workers contradict each other, the job can't be sent, or Spark has no room.
            WorkerFailed: a worker failed; all are stopped.
        """
        data = self.pack_job(job, workers)
        settings = _room_for(self.master, len(workers), self.cores_per_worker)
        with open_spark(self.master, suggested=settings) as context:
            granted = int(context.getConf().get("spark.task.cpus", "1"))
            if self.cores_per_worker not in (None, granted):
                raise UsageError(
                    f"cores_per_worker={self.cores_per_worker!r}, but the active session was started with "
                    f"spark.task.cpus={granted}. Leave it out, or start the session with that setting."
                )
            return cast(T, run_on_engine(data, workers, _SparkEngine(context, granted, self), self))


def _room_for(master: str | None, workers: int, cores: int | None) -> dict[str, str]:
    """Return settings for a new session with room for the workers."""
    each = cores or max(1, len(read_cpu().allowed) // workers)
    settings = {"spark.task.cpus": str(cores or 1)}
    if master is None:
        settings = {"spark.master": f"local[{workers * each}]", "spark.task.cpus": str(each)}
    elif not master.startswith(("local", "spark:")):  # elsewhere executors have one core by default
        settings |= {"spark.executor.instances": str(workers), "spark.executor.cores": str(cores or 1)}
    return settings


def _run_task(invitation: Invitation, _: Iterator[int]) -> Iterator[int]:
    """Serve as an agent: each barrier task stays here, in one thread, as long as its worker lives."""
    context = BarrierTaskContext.get()
    slot = context.partitionId()
    address = context.getTaskInfos()[slot].address
    serve(invitation, slot, address.rpartition(":")[0] or address)
    return iter(())


@dataclass(frozen=True, slots=True)
class _SparkEngine:
    context: SparkContext
    task_cpus: int
    launcher: SparkLauncher

    def listen(self) -> Listener:
        conf = self.context.getConf()
        host = conf.get("spark.driver.host") or LOOPBACK
        return Listener(host, bind=conf.get("spark.driver.bindAddress"))

    @contextmanager
    def place(
        self, invitation: Invitation, count: int, least: int, wait: Callable[[float], None]
    ) -> Iterator[Placement]:
        room = self._find_room(count, least, wait)
        count = min(count, room)
        group, failures = f"boxwright-{uuid.uuid4()}", []

        def run() -> None:
            try:
                self.context.setJobGroup(group, "boxwright workers", interruptOnCancel=True)
                tasks = self.context.parallelize(range(count), count).barrier()
                tasks.mapPartitions(partial(_run_task, invitation)).collect()
            except FAILURES as error:
                failures.append(str(error).strip() or type(error).__name__)

        thread = InheritableThread(target=run, daemon=True)
        thread.start()
        try:
            cpus = max(self.task_cpus, room * self.task_cpus // count)
            yield Placement(count=count, cpus=cpus, failure=lambda: next(iter(failures), None))
        finally:
            thread.join(_LEAVE_S)
            if thread.is_alive():
                with suppress(*FAILURES):
                    self.context.cancelJobGroup(group)
                thread.join(_LEAVE_S)

    def _find_room(self, count: int, least: int, wait: Callable[[float], None]) -> int:
        """Return how many tasks Spark can run at once, when these are enough."""
        start_s = time.monotonic()
        full_s = self.launcher.wait_for_all_s(count, least)
        java: Any = self.context._jsc.sc()
        while True:
            room = int(java.maxNumConcurrentTasks(java.resourceProfileManager().defaultResourceProfile()))
            waited_s = time.monotonic() - start_s
            if room >= count or (room >= least and waited_s > full_s):
                return room
            if waited_s > self.launcher.start_timeout_s:
                raise UsageError(
                    f"Spark has room for {room} of {count} workers with {self.task_cpus} cores each after "
                    f"{waited_s:.0f} s (master {self.context.master!r}). Ask for fewer, give it more executors, or set "
                    "min_workers if fewer are enough."
                )
            wait(_TURN_S)
