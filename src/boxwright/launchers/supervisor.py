"""Supervises the workers of one attempt, here or elsewhere: if one fails, stops the others and names it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from boxwright.core.log import get_logger
from boxwright.launchers.base import Kind, WorkerFailed
from boxwright.launchers.interrupts import Interrupts
from boxwright.launchers.outcome import Outcome, make_error, read_result

TURN_S = 0.1
"""How long one look at the workers waits for their output."""
ENDING_S = 0.01
"""The same, for a worker that has closed its output: it is about to end."""

_KILLED_S = 10.0
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long workers that were asked to end (SIGTERM) may take before they are killed.

    A worker without its own handler ends at once.

    Attributes:
        after_failure_s: when another worker has failed.
        after_interrupt_s: when this program was interrupted, and the job may want to save its work.
    """

    after_failure_s: float = 1.0
    after_interrupt_s: float = 10.0


class Worker(ABC):
    """A worker as the supervisor sees it: a process of this machine, or one behind an agent.

    Attributes:
        rank: its rank.
        status: the exit status of its process, or minus the signal's number; None if it is not known.
        outcome: what it reported; None while it runs, or if it died before it could report.
        ended_s: when its job ended; None while it runs.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.status: int | None = None
        self.outcome: Outcome | None = None
        self.ended_s: float | None = None

    @property
    def failure_kind(self) -> Kind | None:
        """How it failed; None if it runs or has done its job."""
        if self.ended_s is None:
            return None
        if self.outcome is None:
            return "death"
        return None if self.outcome.ok else self.outcome.kind

    def make_error(self) -> WorkerFailed:
        """Return the error for this worker, which has failed."""
        return make_error(self.rank, self.status, self.outcome)

    @property
    @abstractmethod
    def sources(self) -> Sequence[Any]:
        """What to wait for and then `read`; empty when the worker is about to end."""

    @abstractmethod
    def read(self, source: Any) -> object:
        """Take in what a source has: output to forward, or the worker's end."""

    @abstractmethod
    def poll(self) -> object:
        """Notice the worker's end."""

    @abstractmethod
    def stop(self, patience_s: float) -> None:
        """Ask the worker to end, and have it killed after `patience_s`."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the worker and everything it started."""


def supervise(workers: Sequence[Worker], interrupts: Interrupts, patience: Patience, *, settle_s: float = 1.0) -> Any:
    """Wait for all workers of one attempt, and return the first one's result.

    A communication error is a symptom: its cause may come up to `settle_s` later.

    Raises:
        WorkerFailed: a worker failed; the others were stopped.
        Interrupted: a signal came; all were stopped.
    """

    def kill_all() -> None:
        for worker in _running(workers):
            worker.kill()

    interrupts.at_once = kill_all
    _watch(workers, interrupts, settle_s)
    stopped_s = time.monotonic()
    patience_s = patience.after_failure_s if interrupts.seen is None else patience.after_interrupt_s
    for worker in _running(workers):
        worker.stop(patience_s)
    while _running(workers) and time.monotonic() < stopped_s + patience_s + _KILLED_S:
        _turn(workers)
    for worker in _running(workers):
        _log.warning("Worker %d was killed but does not end.", worker.rank)
    interrupts.check()
    failed = [
        (worker.failure_kind == "communication", worker.ended_s, worker.rank, worker)
        for worker in workers
        if worker.failure_kind and worker.ended_s is not None and worker.ended_s <= stopped_s
    ]
    if failed:
        raise min(failed)[-1].make_error()
    for worker in workers:
        if worker.status:
            _log.warning("Worker %d did its job, but then ended with status %d.", worker.rank, worker.status)
    first = next(worker.outcome for worker in workers if worker.rank == 0)
    assert first is not None  # none has failed
    return read_result(first)


def _watch(workers: Sequence[Worker], interrupts: Interrupts, settle_s: float) -> None:
    """Return when all have ended, one has failed, or the program is interrupted."""
    settled_s = float("inf")
    while _running(workers) and interrupts.seen is None and time.monotonic() < settled_s:
        _turn(workers)
        kinds = {worker.failure_kind for worker in workers} - {None}
        if kinds - {"communication"}:
            return
        if kinds:
            settled_s = min(settled_s, time.monotonic() + settle_s)


def _turn(workers: Sequence[Worker]) -> None:
    """Read what the running workers send, and notice which have ended."""
    running = _running(workers)
    owners = {source: worker for worker in running for source in worker.sources}
    for source in wait(list(owners), TURN_S if all(worker.sources for worker in running) else ENDING_S):
        owners[source].read(source)
    for worker in running:
        worker.poll()


def _running(workers: Sequence[Worker]) -> list[Worker]:
    return [worker for worker in workers if worker.ended_s is None]
