"""A child process that may crash, hang or run out of memory: it is watched, limited, and leaves nothing behind."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import BoxwrightError, UsageError
from boxwright.core.exit_status import describe_exit
from boxwright.core.memory import read_memory
from boxwright.core.world import World
from boxwright.launchers.base import GUARD, WorkerSpec
from boxwright.launchers.folder import launch_folder
from boxwright.launchers.interrupts import Interrupted, Interrupts
from boxwright.launchers.outcome import read_result
from boxwright.launchers.payload import pack
from boxwright.launchers.process import WorkerProcess, write_start

_TURN_S = 0.05
_STOPPING_S = 0.001
_PORT = 29500  # unused: a child has no peers to connect to
_ASK, _ANSWER, _STAGE = "ask", "answer", "stage"


class ChildFailed(BoxwrightError):
    """A child process failed.

    Attributes:
        stage: what it was doing.
        cause: what it raised, where it raised something that can be sent.
    """

    def __init__(self, message: str, *, stage: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.stage = stage
        self.cause = cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a child may use.

    Attributes:
        time_s: seconds for each of its stages.
        stage_s: seconds for stages with their own limit.
        memory_bytes: resident memory, including the processes it starts; None for most of what is free.
        cores: logical cpus; empty for all that this process may use.
    """

    time_s: float = 600.0
    stage_s: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None
    threads: int = 1
    cores: tuple[int, ...] = ()


def share_cores(threads: int | None, name: str = "thread_num") -> tuple[int, tuple[int, ...]]:
    """Return a child's number of threads and its logical cpus; by default one per usable physical core, and all cpus.

    Raises:
        UsageError: this process may use fewer cpus; the message calls the number `name`.
    """
    cpu = read_cpu()
    if threads is None:
        return cpu.usable_cores, ()
    if not 1 <= threads <= len(cpu.allowed):
        raise UsageError(f"{name}={threads!r} is not possible: this process may use {len(cpu.allowed)} cpus.")
    return threads, tuple(sorted(one for core in cpu.cores[:threads] for one in core.cpus))


class Nursery:
    """Starts children, in a temporary folder that is removed afterwards, and ends them on a signal.

    Use `open_nursery`. Start children and wait for them in the thread that opened the nursery.
    """

    def __init__(self, folder: Path, interrupts: Interrupts) -> None:
        self.folder = folder
        self._interrupts = interrupts
        self._count = 0
        self._children: list[Child] = []

    def start(self, job: "Job", *, limits: Limits, log: Path) -> "Child":
        """Start a job in a fresh interpreter; its output goes to the log file.

        Raises:
            UsageError: the job can't be sent to another process.
        """
        home = self.folder / str(self._count)
        packed = pack(partial(_run_job, job, home), "The model or its data")
        self._count += 1
        home.mkdir()
        (home / "tmp").mkdir()
        child = Child(packed, home, limits, log, self._interrupts)
        self._children.append(child)
        return child

    def run(self, job: "Job", *, limits: Limits, log: Path) -> Any:
        """Run a job in a fresh interpreter and return its result.

        Raises:
            ChildFailed: it raised, crashed, or exceeded a limit.
        """
        child = self.start(job, limits=limits, log=log)
        try:
            return child.result()
        finally:
            child.close()

    def close(self) -> None:
        """End all children."""
        for child in self._children:
            child.close()


@contextmanager
def open_nursery() -> Iterator[Nursery]:
    """Yield a nursery; Ctrl-C and SIGTERM are delivered to the program once all children have ended."""
    with Interrupts() as interrupts, suppress(Interrupted), launch_folder() as folder:
        nursery = Nursery(folder, interrupts)
        interrupts.at_once = nursery.close
        try:
            yield nursery
        finally:
            nursery.close()
    if interrupts.seen is not None:
        interrupts.deliver()


class Child:
    """One child process.

    `result`, `ask` and `listen` raise `ChildFailed` if the job raised, crashed, or exceeded a limit.
    """

    def __init__(self, job: bytes, home: Path, limits: Limits, log: Path, interrupts: Interrupts) -> None:
        self._home, self._limits, self._interrupts = home, limits, interrupts
        self._memory_bytes = limits.memory_bytes or int(read_memory().usable_bytes * 0.9)
        for name in (_ASK, _ANSWER):
            os.mkfifo(home / name)
        # Open for reading and writing: neither side ever waits for the other to open it.
        self._ask = os.open(home / _ASK, os.O_RDWR | os.O_CLOEXEC)
        self._answer = os.open(home / _ANSWER, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log.open("ab")
        self._received = b""
        self._stage, self._stage_since_s = "start", time.monotonic()
        self._over: str | None = None
        self._stopped = False
        write_start(home, job, None)
        spec = WorkerSpec(
            cores=limits.cores,
            threads=limits.threads,
            env=(("TMPDIR", str(home / "tmp")),),  # a converter's leftovers are removed with the child
        )
        self._process = WorkerProcess(spec, home, self._write_log, master_port=_PORT)
        with suppress(OSError):  # if memory runs out, the kernel should kill the child, not its parent
            Path(f"/proc/{self._process.pid}/oom_score_adj").write_text("1000", encoding="ascii")

    def result(self) -> Any:
        """Wait for the job to end and return its result."""
        while self._turn() is None:
            pass
        self._check()
        assert self._process.outcome is not None
        return read_result(self._process.outcome)

    def ask(self, question: Mapping[str, Any]) -> Any:
        """Send a question to the job (see `Channel.answer`) and return its answer."""
        self.send(question)
        return self.listen()

    def send(self, question: Mapping[str, Any]) -> None:
        """Send a question to the job without waiting for an answer; resumes a paused child."""
        self.resume()
        self._stage_since_s = time.monotonic()
        os.write(self._ask, json.dumps(question).encode() + b"\n")

    def listen(self) -> Any:
        """Wait for the job's next answer and return it."""
        while b"\n" not in self._received:
            if self._turn() is not None and b"\n" not in self._received:
                self._check()
                raise ChildFailed("it ended before it answered", stage=self.stage)
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    def pause(self) -> None:
        """Stop the process and all that it has started: threads that wait by spinning would take time from others."""
        if self._process.poll() is None and not self._stopped:
            os.kill(self._process.pid, signal.SIGSTOP)
            # The child keeps computing until the kernel delivers the signal.
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            while running := [pid for pid in self._tree() if _is_running(pid)]:
                _signal(running, signal.SIGSTOP)
                time.sleep(_STOPPING_S)
            self._stopped = True

    def resume(self) -> None:
        """Resume a paused process."""
        if self._stopped and self._process.poll() is None:
            _signal(self._tree(), signal.SIGCONT)
        self._stopped = False

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def stage(self) -> str:
        """The stage that the job has announced."""
        with suppress(OSError):
            return (self._home / _STAGE).read_text(encoding="utf-8") or self._stage
        return self._stage

    @property
    def resident_bytes(self) -> int:
        """The resident memory of the process and all that it has started."""
        total = 0
        for pid in self._tree():
            with suppress(OSError, ValueError, IndexError):
                pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
                total += pages * os.sysconf("SC_PAGE_SIZE")
        return total

    def _tree(self) -> list[int]:
        """Return the ids of the process and of all that it has started."""
        found = [self._process.pid]
        for pid in found:
            with suppress(OSError, ValueError):
                found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split())
        return found

    def close(self) -> None:
        """Kill the process and all that it has started, and close its files; closing twice is allowed."""
        if self._log.closed:
            return
        self._process.close()
        os.close(self._ask)
        os.close(self._answer)
        self._log.close()

    def _turn(self) -> int | None:
        """Read the child's output for a moment; return its exit status, None while it runs."""
        self._interrupts.check()
        self._pump(_TURN_S)
        status = self._process.poll()
        if status is not None:
            self._pump(0)
            return status
        now, stage = time.monotonic(), self.stage
        if stage != self._stage:
            self._stage, self._stage_since_s = stage, now
        limit_s = self._limits.stage_s.get(stage, self._limits.time_s)
        if now - self._stage_since_s > limit_s:
            self._over = f"it took more than {limit_s:g} s and was stopped"
        elif (used := self.resident_bytes) > self._memory_bytes:
            self._over = (
                f"it took {used / 2**20:.0f} MB of memory, more than the {self._memory_bytes / 2**20:.0f} MB allowed, "
                "and was stopped"
            )
        if self._over is not None:
            self._process.kill()
            while (status := self._process.poll()) is None:
                self._pump(_TURN_S)
        return status

    def _pump(self, timeout_s: float) -> None:
        """Read all that is there; wait up to `timeout_s` for the first of it."""
        while ready := wait([self._answer, *self._process.sources], timeout_s):
            timeout_s = 0
            for fd in ready:
                if fd == self._answer:
                    self._received += os.read(self._answer, 1 << 16)
                elif isinstance(fd, int):
                    self._process.read(fd)

    def _check(self) -> None:
        """Raise unless the job returned."""
        outcome, cause = self._process.outcome, None
        if self._over is not None or outcome is None:
            how, why = describe_exit(self._process.status)
            reason = trace = self._over or f"its process {how} before the work was done. {why}"
        elif outcome.ok:
            return
        else:
            reason, trace, cause = outcome.sentence, outcome.trace, self._process.make_error().__cause__
        # A child that hangs or is killed can't log the reason itself.
        self._write_log("reason", f"[{self.stage}] {trace}\n".encode())
        raise ChildFailed(reason, stage=self.stage, cause=cause)

    def _write_log(self, _: str, data: bytes) -> None:
        self._log.write(data)
        self._log.flush()


class Channel:
    """A job's connection to its parent."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def enter(self, stage: str) -> None:
        """Announce the next stage; each has its own time limit."""
        (self._home / _STAGE).write_text(stage, encoding="utf-8")

    def answer(self, handle: Callable[[dict[str, Any]], Any]) -> None:
        """Announce that the job is ready, then answer the parent's questions until `handle` returns None."""
        with (
            (self._home / _ASK).open(encoding="utf-8") as questions,
            (self._home / _ANSWER).open("w", encoding="utf-8") as answers,
        ):
            print(json.dumps("ready"), file=answers, flush=True)
            for line in questions:
                answer = handle(json.loads(line))
                if answer is None:
                    return
                print(json.dumps(answer), file=answers, flush=True)


Job = Callable[[Channel], Any]
"""What a child does. The job and its result must be picklable."""


def _run_job(job: Job, home: Path, world: World) -> Any:  # noqa: ARG001  a child has no peers
    return job(Channel(home))


def _is_running(pid: int) -> bool:
    """Return whether a process may compute: it is neither stopped nor gone, nor the guard, which must stay awake."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
    except OSError:
        return False
    return rest.split()[0] not in "TtZX" and not name.endswith(GUARD)


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def peak_bytes() -> int:
    """Return this process's peak memory."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
