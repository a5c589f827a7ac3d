"""One artifact in several processes, each pinned to its own cores, for more throughput than one process has."""

import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from boxwright.core.cpu import read_cpu, split_cores
from boxwright.core.errors import BoxwrightError, CheckpointError, UsageError, WorkerError
from boxwright.core.exit_status import describe_exit
from boxwright.core.log import get_logger
from boxwright.core.signature import Array
from boxwright.runtimes.artifact import Artifact, read_artifact
from boxwright.runtimes.base import Tuning, refuse_fork
from boxwright.runtimes.slab import Slab
from boxwright.runtimes.trust import check_files

_log = get_logger(__name__)
_ENDING_S = 5.0
_AGAIN = "Close the instances and start them again."
_CLOSED = "These instances are closed. Load the model again."


def to_multi_instance(
    folder: Path,
    instances: int,
    *,
    cores: Sequence[Sequence[int]] | None = None,
    tuning: Tuning | None = None,
    trust: bool = False,
) -> "MultiInstance":
    """Return a graph over several processes that each load the artifact.

    Args:
        folder: the artifact folder of any model and runtime.
        instances: how many processes.
        cores: the logical cpus of each process (default: the physical cores that this process may use, split evenly).
        tuning: how each instance uses its cores (default: one thread for each physical core it has).
        trust: load code that was made elsewhere too.

    Raises:
        CheckpointError: the artifact can't be read, or holds code of another user or machine.
        UsageError: there are fewer cores than instances, or `cores` does not fit.
        WorkerError: an instance can't load the artifact.
    """
    artifact = read_artifact(folder)
    if not trust:
        check_files(folder, artifact.files)
    return MultiInstance(artifact, place(instances, cores), tuning)


def place(
    instances: int | None, cores: Sequence[Sequence[int]] | None = None, *, each: int | None = None
) -> list[tuple[int, ...]]:
    """Return the logical cpus of each instance.

    Args:
        instances: how many; None for as many as `cores` names, or as there is room for.
        cores: the cpus of each; None for an even share.
        each: how many physical cores each gets; None for an even share of all.

    Raises:
        UsageError: there are fewer cores than instances, or `cores` does not fit.
    """
    cpu = read_cpu()
    if each is not None:
        if cores is not None:
            raise UsageError(f"cores={cores!r} and cores_per_process={each!r}: give one of them.")
        instances = max(1, cpu.usable_cores // max(1, each)) if instances is None else instances
        if not 1 <= each * instances <= cpu.usable_cores:
            raise UsageError(
                f"cores_per_process={each!r} for {instances!r} processes is not possible: this process may use "
                f"{cpu.usable_cores} physical cores."
            )
        groups = [cpu.cores[i * each : (i + 1) * each] for i in range(instances)]
        return [tuple(c for core in group for c in core.cpus) for group in groups]
    if instances is None:
        instances = cpu.usable_cores if cores is None else len(cores)
    if cores is None:
        if instances > cpu.usable_cores:
            raise UsageError(
                f"instances={instances!r} needs as many physical cores, but this process may use {cpu.usable_cores}. "
                f"Use instances={cpu.usable_cores!r} or fewer, or give cores of your own."
            )
        # All cores, even if a quota allows fewer: the kernel may then choose among them.
        return [tuple(c for core in share for c in core.cpus) for share in split_cores(cpu.cores, instances)]
    if len(cores) != instances or not all(cores):
        raise UsageError(f"cores={cores!r} does not fit instances={instances!r}: give one list of cpus for each.")
    unknown = sorted({c for share in cores for c in share} - set(cpu.allowed))
    if unknown:
        raise UsageError(f"cores={cores!r} names cpus that this process may not use: {unknown!r}.")
    return [tuple(share) for share in cores]


class MultiInstance:
    """A `Graph` over several processes; it is thread-safe.

    The caller has made sure that the artifact may run (`trust.check_files`). If an instance dies, the requests that it
    had fail, and the others compute the later ones.

    Example:
        A folder of detections, two processes with half of the cores each::

            with to_multi_instance(Path("best"), 2) as graph:
                for outputs in graph.run_all([images] for images in batches):
                    ...
    """

    def __init__(self, artifact: Artifact, cpus: Sequence[Sequence[int]], tuning: Tuning | None = None) -> None:
        self.signature = artifact.signature
        self._process = os.getpid()
        self._room = threading.Condition()
        self._workers: list[_Worker] = []
        weakref.finalize(self, _hang_up, self._workers)  # if `close` is never called
        try:
            for number, share in enumerate(cpus):
                self._workers.append(_Worker(number, artifact.folder, share, tuning or Tuning(), self._room))
            for worker in self._workers:  # all load in parallel
                worker.await_ready()
        except BaseException:
            self.close()
            raise

    @property
    def cpus(self) -> list[tuple[int, ...]]:
        """The logical cpus of each instance."""
        return [worker.cpus for worker in self._workers]

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the outputs of one request, computed by one of the instances."""
        return self._submit(0, inputs).result()

    def run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        """Yield the outputs of many requests in their order; each goes to the instance with the least to do.

        Only a few requests per instance are held in memory.

        Raises:
            WorkerError: a request failed, or an instance died; the message gives the position of the request.
        """
        in_flight: deque[Future[tuple[Array, ...]]] = deque()
        # Results that wait for an earlier one are held: at most as many as requests can be in flight.
        most = 2 * sum(worker.slots for worker in self._workers)
        try:
            for position, inputs in enumerate(requests):
                in_flight.append(self._submit(position, inputs))
                while in_flight and (len(in_flight) >= most or in_flight[0].done()):
                    yield in_flight.popleft().result()
            while in_flight:
                yield in_flight.popleft().result()
        finally:
            wait(in_flight)  # even if the caller stops early, nothing keeps running

    def _submit(self, position: int, inputs: Sequence[Array]) -> "Future[tuple[Array, ...]]":
        """Send a request to the instance with the least to do, once one has a free slot."""
        refuse_fork(self._process)
        while True:
            with self._room:
                self._room.wait_for(
                    lambda: not any(w.alive for w in self._workers) or any(w.free for w in self._workers)
                )
                if not self._workers:
                    raise CheckpointError(_CLOSED)
                worker = max(self._workers, key=lambda w: len(w.free))
                if not worker.free:
                    raise worker.make_error(f"before it took request {position}")
                slot = worker.free.popleft()
            future = worker.send(slot, position, inputs)
            if future is not None:
                return future

    def close(self) -> None:
        """Stop the processes and wait for them; closing twice is allowed."""
        with self._room:
            workers, self._workers = self._workers, []
            self._room.notify_all()
        _hang_up(workers)  # all at once, then wait for each
        for worker in workers:
            worker.end()

    def __enter__(self) -> "MultiInstance":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Worker:
    """One process, the memory shared with it, and its requests; a thread receives the answers."""

    def __init__(
        self, number: int, folder: Path, cpus: Sequence[int], tuning: Tuning, room: threading.Condition
    ) -> None:
        self.number = number
        self.cpus = tuple(cpus)
        streams = tuning.streams or 1
        self.slots = max(1, streams) + 1  # one request waits while an instance computes
        self.free = deque(range(self.slots))  # guarded by `room`, which is notified of every change
        self.alive = True  # as `free`; a dead instance has no free slots
        self._room = room
        self._slabs = [(Slab.create(), Slab.create()) for _ in range(self.slots)]
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[int, Future[tuple[Array, ...]]]] = {}  # by slot: position and answer
        self._has_ended = False
        self._closed = False
        if tuning.threads is None:
            cpu = read_cpu()
            physical = len({cpu.core_of(c).cpus for c in cpus})
            tuning = replace(tuning, threads=max(1, physical // max(1, streams)))
        self._socket, theirs = socket.socketpair()
        start = {
            "pipe": theirs.fileno(),
            "slots": [[taken.fd, given.fd] for taken, given in self._slabs],
            "folder": str(folder.resolve()),
            "tuning": asdict(tuning),
            "cpus": list(cpus),
        }
        self._pipe: Connection[Any, Any] = Connection(os.dup(self._socket.fileno()))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "boxwright.runtimes.instance_worker", json.dumps(start)],
            pass_fds=[theirs.fileno(), *(slab.fd for pair in self._slabs for slab in pair)],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._listener = threading.Thread(target=self._listen, name=f"boxwright-instance-{number}", daemon=True)

    def await_ready(self) -> None:
        try:
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise self.make_error("while it loaded the artifact") from None
        if answer[0] == "error":
            raise WorkerError(f"Instance {self.number} can't load the artifact: {answer[2]}\n{answer[3]}")
        self._listener.start()

    def send(self, slot: int, position: int, inputs: Sequence[Array]) -> "Future[tuple[Array, ...]] | None":
        """Send a request and return the future of its answer; None if the process has ended: another must take it."""
        future: Future[tuple[Array, ...]] = Future()
        try:
            header = self._slabs[slot][0].write(inputs)
        except BaseException:
            self._give_back(slot)
            raise
        with self._lock:
            if not self._has_ended:
                self._waiting[slot] = (position, future)
                with suppress(OSError):  # it has died: `_listen` reports how
                    self._pipe.send((slot, header))
                return future
        return None

    def hang_up(self) -> None:
        """Tell the process to stop, and fail whatever waits for it."""
        self._closed = True
        with suppress(OSError):  # it has already exited
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Wait for the process, which exits when its pipe is closed; kill it if it hangs."""
        try:
            self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._listener.ident is not None:
            self._listener.join()
        self._pipe.close()
        self._socket.close()
        for pair in self._slabs:
            for slab in pair:
                slab.close()

    def _listen(self) -> None:
        """Receive answers until the process exits; runs in its own thread."""
        while True:
            try:
                kind, slot, *reply = self._pipe.recv()
            except (EOFError, OSError):
                break
            with self._lock:
                position, future = self._waiting.pop(slot)
            answer = None if kind == "error" else tuple(view.copy() for view in self._slabs[slot][1].read(reply[0]))
            self._give_back(slot)
            if answer is not None:
                future.set_result(answer)
            else:
                text = f"Request {position} failed in instance {self.number}: {reply[0]}\n{reply[1]}"
                future.set_exception(WorkerError(text))
        with self._lock:
            self._has_ended = True
            lost, self._waiting = self._waiting, {}
        with self._room:
            self.alive = False
            self.free.clear()
            self._room.notify_all()
        for position, future in lost.values():
            future.set_exception(self.make_error(f"while it computed request {position}"))
        if not self._closed:
            _log.warning("%s", self.make_error("and gets no more requests"))

    def _give_back(self, slot: int) -> None:
        with self._room:
            if self.alive:
                self.free.append(slot)
            self._room.notify()

    def make_error(self, when: str) -> BoxwrightError:
        """Wait for the process, and return the error that says how it ended."""
        if self._closed:
            return CheckpointError(_CLOSED)
        how, why = describe_exit(self._process.wait())
        return WorkerError(f"Instance {self.number} (cpus {list(self.cpus)!r}) {how} {when}. {why}. {_AGAIN}")


def _hang_up(workers: "Sequence[_Worker]") -> None:
    for worker in workers:
        worker.hang_up()
