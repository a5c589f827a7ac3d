"""Strategy `spark`: each worker is a fresh child process of a barrier task.

The active SparkSession is used as it is. Otherwise a session is opened for the launch and closed again. Spark does not
try a failed barrier stage again: the driver does. Local and standalone masters are tested; YARN and Kubernetes run the
same code, untested.
"""

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from pyspark import BarrierTaskContext, InheritableThread, SparkContext, SparkFiles

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger
from boxwright.core.world import World
from boxwright.launchers.agent import serve
from boxwright.launchers.base import WorkerSpec
from boxwright.launchers.driver import run_on_engine
from boxwright.launchers.engine import EngineLauncher
from boxwright.launchers.folder import launch_folder
from boxwright.launchers.spark_session import FAILURES, LOOPBACK, open_spark
from boxwright.launchers.wire import Invitation, Listener

T = TypeVar("T")

_TURN_S = 0.25
_LEAVE_S = 10.0
_SLOWEST_BYTES_PER_S = 10e6
_log = get_logger(__name__)

Parcels = tuple[tuple[str, str], ...]
"""Files that Spark distributes: what a worker calls each, and what Spark does."""


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
        data, size = self.pack_job(job, workers)
        if size:
            _log.info("Sending %.1f MB through Spark.", size / 1e6)
        # A task starts only when its executor has the files.
        patient = replace(self, start_timeout_s=self.start_timeout_s + size / _SLOWEST_BYTES_PER_S)
        settings = _room_for(self.master, len(workers), self.cores_per_worker)
        with open_spark(self.master, suggested=settings) as context:
            granted = int(context.getConf().get("spark.task.cpus", "1"))
            if self.cores_per_worker not in (None, granted):
                raise UsageError(
                    f"cores_per_worker={self.cores_per_worker!r}, but the active session was started with "
                    f"spark.task.cpus={granted}. Leave it out, or start the session with that setting."
                )
            return cast(T, run_on_engine(data, workers, _SparkEngine(context, granted, self), patient))


def _room_for(master: str | None, workers: int, cores: int | None) -> dict[str, str]:
    """Return the settings of a session of our own that has room for the workers."""
    each = cores or max(1, len(read_cpu().allowed) // workers)
    settings = {"spark.task.cpus": str(cores or 1)}
    if master is None:
        settings = {"spark.master": f"local[{workers * each}]", "spark.task.cpus": str(each)}
    elif not master.startswith(("local", "spark:")):  # elsewhere executors have one core unless told
        settings |= {"spark.executor.instances": str(workers), "spark.executor.cores": str(cores or 1)}
    return settings


class _Shipment:
    """Files that a session distributes for one start of the workers, and no longer.

    Spark has no word for taking a file back. Tasks take it out of their executor's folder; here it is struck from the
    list that new executors fetch, and the driver's own copy goes.
    """

    def __init__(self, context: SparkContext, files: Sequence[Path]) -> None:
        self._context = context
        self._stack = ExitStack()
        self.parcels: Parcels = ()
        try:
            for file in files:
                self._add(file)
        except FAILURES as error:
            self.close()
            raise UsageError(
                f"Spark could not take {str(file)!r} to its executors: {error}. Make room on this machine, or have the "
                "file where every machine sees it."
            ) from error

    def _add(self, file: Path) -> None:
        # Beside the file a link costs no room. A name is known to a session for ever, and .tar would be unpacked.
        link = self._stack.enter_context(launch_folder(file.parent)) / f"boxwright-{uuid.uuid4().hex}"
        try:
            os.link(file, link)
        except OSError:  # a disk without links
            shutil.copyfile(file, link)
        self.parcels += ((file.name, link.name),)
        self._context.addFile(str(link))

    def close(self) -> None:
        names = {name for _, name in self.parcels}
        with self._stack, suppress(*FAILURES):
            for url in self._context.listFiles:
                if url.rpartition("/")[2] in names:
                    _strike(self._context, url)
            _take_out(self.parcels)


def _strike(context: SparkContext, url: str) -> None:
    """Have executors that come later not ask for a file."""
    sessions: Any = context._jsc.sc().addedFiles().valuesIterator()
    while sessions.hasNext():
        sessions.next().remove(url)


def _bring(parcels: Parcels, folder: Path) -> None:
    for name, ours in parcels:
        shutil.move(SparkFiles.get(ours), folder / name)


def _take_out(parcels: Parcels) -> None:
    for _, ours in parcels:
        Path(SparkFiles.get(ours)).unlink(missing_ok=True)


class _Task:
    """What each barrier task runs: it stays in `serve`, in one thread, as long as its worker lives."""

    def __init__(self, invitation: Invitation, parcels: Parcels) -> None:
        self._invitation, self._parcels = invitation, parcels

    def __call__(self, _: Iterator[int]) -> Iterator[int]:
        context = BarrierTaskContext.get()
        hosts = [info.address.rpartition(":")[0] or info.address for info in context.getTaskInfos()]
        slot = context.partitionId()
        bring = partial(_bring, self._parcels) if self._parcels else None
        try:
            serve(self._invitation, slot, hosts[slot], bring)
        finally:
            _take_out(self._parcels)  # another executor of this machine was first
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

    def place(self, invitation: Invitation, count: int, least: int, wait: Callable[[float], None]) -> "_SparkPlacement":
        start_s = time.monotonic()
        full_s = self.launcher.wait_for_all_s(count, least)
        while (room := self._count_slots()) < count:
            waited_s = time.monotonic() - start_s
            if waited_s > full_s and room >= least:
                count = room
                break
            if waited_s > self.launcher.start_timeout_s:
                raise UsageError(
                    f"Spark has room for {room} of {count} workers with {self.task_cpus} cores each after "
                    f"{waited_s:.0f} s (master {self.context.master!r}). Ask for fewer, give it more executors, or set "
                    "min_workers if fewer are enough."
                )
            wait(_TURN_S)
        cpus = max(self.task_cpus, room * self.task_cpus // count)
        return _SparkPlacement(self.context, invitation, count, cpus, self.launcher.files)

    def _count_slots(self) -> int:
        java: Any = self.context._jsc.sc()
        return int(java.maxNumConcurrentTasks(java.resourceProfileManager().defaultResourceProfile()))


class _SparkPlacement:
    def __init__(
        self, context: SparkContext, invitation: Invitation, count: int, cpus: int, files: Sequence[Path]
    ) -> None:
        self.count, self.cpus = count, cpus
        self._context = context
        self._shipment = _Shipment(context, files)
        self._group = f"boxwright-{uuid.uuid4()}"
        self._failure: str | None = None
        self._thread = InheritableThread(
            target=self._run, args=(_Task(invitation, self._shipment.parcels),), daemon=True
        )
        self._thread.start()

    def _run(self, task: _Task) -> None:
        try:
            self._context.setJobGroup(self._group, "boxwright workers", interruptOnCancel=True)
            self._context.parallelize(range(self.count), self.count).barrier().mapPartitions(task).collect()
        except FAILURES as error:
            self._failure = str(error).strip() or type(error).__name__

    def failure(self) -> str | None:
        return self._failure

    def close(self) -> None:
        self._thread.join(_LEAVE_S)
        if self._thread.is_alive():
            with suppress(*FAILURES):
                self._context.cancelJobGroup(self._group)
            self._thread.join(_LEAVE_S)
        self._shipment.close()
