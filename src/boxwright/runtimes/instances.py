"""One artifact in several processes, each with cores of its own: more answers a second than one process gives."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from boxwright.core.cpu import read_cpu, split_cores
from boxwright.core.errors import CheckpointError, UsageError, WorkerError
from boxwright.core.signature import Array
from boxwright.runtimes.artifact import read_artifact
from boxwright.runtimes.base import Tuning
from boxwright.runtimes.slab import Slab

_SLOTS = 2  # the next request lies ready while an instance computes
_ENDING_S = 5.0


def to_multi_instance(
    folder: Path,
    instances: int,
    *,
    cores: Sequence[Sequence[int]] | None = None,
    tuning: Tuning | None = None,
) -> "MultiInstance":
    """Return a graph over several processes that each hold the artifact.

    Args:
        folder: the artifact folder of any model and runtime.
        instances: how many processes.
        cores: the logical cpus of each process (default: the physical cores that this process may use, split evenly).
        tuning: how each instance uses its cores (default: one thread for each physical core it has).

    Raises:
        CheckpointError: the artifact can't be read.
        UsageError: there are fewer cores than instances, or `cores` does not fit.
        WorkerError: an instance can't load the artifact.
    """
    return MultiInstance(folder, place(instances, cores), tuning)


def place(instances: int, cores: Sequence[Sequence[int]] | None = None) -> list[tuple[int, ...]]:
    """Return the logical cpus of each instance.

    Raises:
        UsageError: there are fewer cores than instances, or `cores` does not fit.
    """
    cpu = read_cpu()
    if cores is None:
        if instances > cpu.usable_cores:
            raise UsageError(
                f"instances={instances!r} needs as many physical cores, but this process may use {cpu.usable_cores}. "
                f"Use instances={cpu.usable_cores!r} or fewer, or give cores of your own."
            )
        # All cores, not only as many as a quota pays for: the kernel may then choose among them.
        return [tuple(c for core in share for c in core.cpus) for share in split_cores(cpu.cores, instances)]
    if len(cores) != instances or not all(cores):
        raise UsageError(f"cores={cores!r} does not fit instances={instances!r}: give one list of cpus for each.")
    unknown = sorted({c for share in cores for c in share} - set(cpu.allowed))
    if unknown:
        raise UsageError(f"cores={cores!r} names cpus that this process may not use: {unknown!r}.")
    return [tuple(share) for share in cores]


class MultiInstance:
    """Several processes behind the graph seam. One thread may use it at a time.

    Example:
        A folder of detections, two processes with half of the cores each::

            with to_multi_instance(Path("best"), 2) as graph:
                for outputs in graph.run_all([images] for images in batches):
                    ...
    """

    def __init__(self, folder: Path, cpus: Sequence[Sequence[int]], tuning: Tuning | None = None) -> None:
        self.signature = read_artifact(folder).signature
        self._busy = threading.Lock()
        self._workers: list[_Worker] = []
        try:
            for number, share in enumerate(cpus):
                self._workers.append(_Worker(number, folder, share, tuning))
            for worker in self._workers:  # all have been loading side by side
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
        (outputs,) = self.run_all([inputs])
        return outputs

    def run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        """Yield the outputs of many requests in their order; each goes to the instance with the least to do.

        However long the iterable, only a few requests for each instance are held.

        Raises:
            WorkerError: a request failed, or an instance died; the message has the position of the request.
            UsageError: an earlier call has not ended.
        """
        if not self._workers:
            raise CheckpointError("These instances are closed. Load the model again.")
        if not self._busy.acquire(blocking=False):
            raise UsageError("These instances are at work. Finish or close the earlier run_all() first.")
        try:
            yield from self._run_all(requests)
        finally:
            for worker in self._workers:
                worker.drain()
            self._busy.release()

    def _run_all(self, requests: Iterable[Sequence[Array]]) -> Iterator[tuple[Array, ...]]:
        done: dict[int, tuple[Array, ...]] = {}
        given = returned = 0
        # Results that wait for an earlier one are held: no more of them than requests can be under way.
        window = 2 * _SLOTS * len(self._workers)
        for inputs in requests:
            while given - returned >= window or not any(w.free for w in self._workers):
                self._collect(done)
                while returned in done:
                    yield done.pop(returned)
                    returned += 1
            min(self._workers, key=lambda w: len(w.waiting)).send(given, inputs)
            given += 1
        while returned < given:
            while returned not in done:
                self._collect(done)
            yield done.pop(returned)
            returned += 1

    def _collect(self, done: dict[int, tuple[Array, ...]]) -> None:
        """Wait for one answer at least, and take all that are there."""
        at_work = {worker.pipe: worker for worker in self._workers if worker.waiting}
        for pipe in wait(list(at_work)):
            position, outputs = at_work[pipe].receive()  # type: ignore[index] # what `wait` was given
            done[position] = outputs

    def close(self) -> None:
        """End the processes and wait until they are gone; closing twice is allowed."""
        for worker in self._workers:
            worker.pipe.close()  # all at once, then wait for each
        for worker in self._workers:
            worker.end()
        self._workers = []

    def __enter__(self) -> "MultiInstance":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Worker:
    """One process, the memory shared with it, and the requests it has been given."""

    def __init__(self, number: int, folder: Path, cpus: Sequence[int], tuning: Tuning | None) -> None:
        self.number = number
        self.cpus = tuple(cpus)
        self.waiting: deque[tuple[int, int]] = deque()  # position of the request, its slot
        self._slots = [(Slab.create(), Slab.create()) for _ in range(_SLOTS)]
        own = tuning or Tuning()
        if own.threads is None:
            own = replace(own, threads=max(1, _physical(cpus) // (own.streams or 1)))
        ours, theirs = socket.socketpair()
        start = {
            "pipe": theirs.fileno(),
            "slots": [[taken.fd, given.fd] for taken, given in self._slots],
            "folder": str(folder.resolve()),
            "tuning": asdict(own),
            "cpus": list(cpus),
        }
        self.pipe: Connection[Any, Any] = Connection(ours.detach())
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "boxwright.runtimes.instance_worker", json.dumps(start)],
            pass_fds=[theirs.fileno(), *(slab.fd for pair in self._slots for slab in pair)],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    @property
    def free(self) -> bool:
        return len(self.waiting) < _SLOTS

    def await_ready(self) -> None:
        answer = self._hear("while it loaded the artifact")
        if answer[0] == "error":
            raise WorkerError(f"Instance {self.number} can't load the artifact: {answer[1]}\n{answer[2]}")

    def send(self, position: int, inputs: Sequence[Array]) -> None:
        slot = position if not self.waiting else self.waiting[-1][1] + 1
        slot %= _SLOTS
        header = self._slots[slot][0].write(inputs)
        self.waiting.append((position, slot))
        try:
            self.pipe.send((slot, header))
        except OSError:
            self._dead(f"before it took request {position}")

    def receive(self) -> tuple[int, tuple[Array, ...]]:
        position, slot = self.waiting[0]
        answer = self._hear(f"while it computed request {position}")
        self.waiting.popleft()
        if answer[0] == "error":
            raise WorkerError(f"Request {position} failed in instance {self.number}: {answer[1]}\n{answer[2]}")
        return position, tuple(view.copy() for view in self._slots[slot][1].read(answer[1]))

    def drain(self) -> None:
        """Wait for requests whose answers nobody wants any more, so that the next caller gets his own."""
        while self.waiting:
            try:
                self.pipe.recv()
            except (EOFError, OSError):
                self.waiting.clear()
                return
            self.waiting.popleft()

    def end(self) -> None:
        """Wait for the process, which ends when its pipe is closed; a stuck one is killed."""
        self.pipe.close()
        try:
            self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pair in self._slots:
            for slab in pair:
                slab.close()

    def _hear(self, when: str) -> Any:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self._dead(when)

    def _dead(self, when: str) -> Any:
        self.waiting.clear()
        code = self._process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        cause = " (out of memory?)" if code == -signal.SIGKILL else ""
        raise WorkerError(
            f"Instance {self.number} (cpus {list(self.cpus)!r}) {how}{cause} {when}. "
            "Close the instances and start them again."
        )


def _physical(cpus: Sequence[int]) -> int:
    cpu = read_cpu()
    return len({cpu.core_of(c).cpus for c in cpus})
