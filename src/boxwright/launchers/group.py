"""Several workers on this machine, from their start to the last one's end."""

import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger
from boxwright.launchers.base import IMPORTING_MAIN, WorkerSpec, check_one_machine
from boxwright.launchers.folder import launch_folder
from boxwright.launchers.interrupts import Interrupts
from boxwright.launchers.outcome import make_error, read_result
from boxwright.launchers.output import Relay
from boxwright.launchers.process import WorkerProcess, write_start
from boxwright.launchers.restart import Restart

_TURN_S = 0.1
_HUNG_UP_S = 0.01  # its pipes are closed, so it will be gone in no time
_SETTLE_S = 1.0
_KILLED_S = 5.0
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long workers that were asked to end (SIGTERM) may take before they are killed.

    A worker that has set no handler of its own ends at once, whatever is said here.

    Attributes:
        after_failure_s: when another worker has failed.
        after_interrupt_s: when this program was interrupted, and the job may want to save its work.
    """

    after_failure_s: float = 1.0
    after_interrupt_s: float = 10.0


class _Interrupted(BaseException):
    """Ends a run from the inside after Ctrl-C or SIGTERM; never seen outside this module."""


def run_local(
    job: bytes,
    workers: Sequence[WorkerSpec],
    *,
    main_module: dict[str, str] | None,
    restart: Restart,
    patience: Patience,
) -> Any:
    """Run a packed job in one fresh interpreter for each worker, and return the first worker's result.

    Args:
        job: the job as `pack` gave it.
        workers: all ranks of one world.
        main_module: how each worker imports `__main__` first; None to leave it.
        restart: how often to start again after a death.
        patience: how long workers may take to end.

    Raises:
        UsageError: the workers contradict each other, or the program starts workers whenever it is imported.
        WorkerFailed: a worker failed; all are stopped.
    """
    if IMPORTING_MAIN in os.environ:
        raise UsageError(
            "The program starts workers as soon as it is imported, and each worker imports it. Put the start under "
            "`if __name__ == '__main__':`, or use strategy 'subprocess', which does not import the program."
        )
    check_one_machine(workers)
    if any(worker.anywhere for worker in workers):
        raise UsageError("anywhere=True is for an engine with its own machines. Say cores and threads: make_workers().")
    result = None
    interrupts = Interrupts()
    with interrupts, launch_folder() as folder:
        write_start(folder, job, main_module)
        with suppress(_Interrupted):
            result = restart.run(lambda attempt: _run_once(folder, attempt, workers, interrupts, patience))
    if interrupts.seen is not None:
        interrupts.deliver()
    return result


def find_free_port() -> int:
    """Return a port that no program listens on just now."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])


def _run_once(
    folder: Path, attempt: int, workers: Sequence[WorkerSpec], interrupts: Interrupts, patience: Patience
) -> Any:
    port = find_free_port()  # a new one each time: the last group's connections may not be gone yet
    group = _Group(interrupts)
    try:
        for spec in workers:
            prefix = f"[rank {spec.rank}] " if len(workers) > 1 else ""
            group.add(WorkerProcess(_keep_local(spec), folder, attempt=attempt, master_port=port), prefix)
        group.watch()
        stopped_s = time.monotonic()
        group.stop(patience.after_failure_s if interrupts.seen is None else patience.after_interrupt_s)
    finally:
        group.close()
    if interrupts.seen is not None:
        raise _Interrupted
    failed = group.find_first_failure(stopped_s)
    if failed is not None:
        raise make_error(failed.answers, failed.rank, failed.status)
    group.mention_odd_ends()
    return read_result(folder / str(attempt))


def _keep_local(spec: WorkerSpec) -> WorkerSpec:
    """Have gloo talk over the loopback interface, which works without a network and lets nobody else listen."""
    if _GLOO_INTERFACE in os.environ or "lo" not in {name for _, name in socket.if_nameindex()}:
        return spec
    return replace(spec, env=((_GLOO_INTERFACE, "lo"), *spec.env))


class _Group:
    """The processes of one attempt and their output, all handled in the calling thread."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._processes: list[WorkerProcess] = []
        self._relays: dict[int, list[Relay]] = {}
        self._ended_s: dict[int, float] = {}
        self._selector = selectors.DefaultSelector()
        interrupts.at_once = self._kill

    @property
    def _running(self) -> list[WorkerProcess]:
        return [process for process in self._processes if process.status is None]

    def add(self, process: WorkerProcess, prefix: str) -> None:
        """Take in a process that has just started."""
        self._processes.append(process)
        self._relays[process.rank] = [Relay(fd, name, prefix) for name, fd in process.streams.items()]
        for relay in self._relays[process.rank]:
            os.set_blocking(relay.fd, False)
            self._selector.register(relay.fd, selectors.EVENT_READ, relay)

    def watch(self) -> None:
        """Wait until all have ended, one has failed, or the program is interrupted."""
        settled_s = float("inf")
        while self._running and self._interrupts.seen is None and time.monotonic() < settled_s:
            self._turn()
            kinds = [kind for process in self._processes if (kind := _failure_kind(process))]
            if any(kind != "communication" for kind in kinds):
                return
            if kinds:
                # Who lost the others is not to blame: in a moment the one who left will be seen.
                settled_s = min(settled_s, time.monotonic() + _SETTLE_S)

    def stop(self, patience_s: float) -> None:
        """End those that still run: ask first, then kill."""
        for process in self._running:
            process.terminate()
        self._turn_until(lambda: not self._running, patience_s)
        self._kill()
        self._turn_until(lambda: not self._running, _KILLED_S)
        for process in self._running:
            _log.warning("Worker %d (process %d) does not end, not even when killed.", process.rank, process.pid)

    def close(self) -> None:
        """Leave nothing running and nothing open."""
        self._kill()
        self._turn_until(lambda: not self._running, _KILLED_S)
        self._selector.close()
        for process in self._processes:
            process.close()

    def find_first_failure(self, stopped_s: float) -> WorkerProcess | None:
        """Return the worker that failed first by itself, before we stopped any; None if all went well."""
        found = []
        for process in self._processes:
            kind, outcome = _failure_kind(process), process.outcome()
            when_s = outcome.time_s if outcome else self._ended_s.get(process.rank, float("inf"))
            if kind and when_s <= stopped_s:
                found.append((kind == "communication", when_s, process.rank, process))
        return min(found)[-1] if found else None

    def mention_odd_ends(self) -> None:
        """Log which workers did their job but then ended badly."""
        for process in self._processes:
            if process.status:
                _log.warning("Worker %d did its job, but then ended with status %d.", process.rank, process.status)

    def _turn(self) -> None:
        """Pass on output and see who has ended."""
        registered = self._selector.get_map()
        hung_up = any(relay.fd not in registered for process in self._running for relay in self._relays[process.rank])
        for key, _ in self._selector.select(_HUNG_UP_S if hung_up else _TURN_S):
            if key.data.pump() == 0:
                self._selector.unregister(key.fd)
        for process in self._running:
            if process.poll() is not None:
                self._ended_s[process.rank] = time.monotonic()
                for relay in self._relays[process.rank]:
                    relay.finish()
                    if relay.fd in registered:
                        self._selector.unregister(relay.fd)

    def _turn_until(self, is_done: Callable[[], bool], limit_s: float) -> None:
        end_s = time.monotonic() + limit_s
        while not is_done() and time.monotonic() < end_s:
            self._turn()

    def _kill(self) -> None:
        for process in self._running:
            process.kill()


def _failure_kind(process: WorkerProcess) -> str | None:
    """Return how a worker failed; None if it runs or has done its job."""
    if process.status is None:
        return None
    outcome = process.outcome()
    if outcome is None:
        return "death"
    return None if outcome.ok else outcome.kind
