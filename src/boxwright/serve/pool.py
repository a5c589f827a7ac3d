"""The worker processes of one version of a model, and the requests that wait for them."""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from boxwright.core.errors import BoxwrightError
from boxwright.core.log import get_logger
from boxwright.core.memory import resident_bytes
from boxwright.serve.answer import JSON, Answer, error_body
from boxwright.serve.config import ServeConfig
from boxwright.serve.metrics import Metrics
from boxwright.serve.overload import Admission, Overloaded
from boxwright.serve.plan import WorkerPlan
from boxwright.serve.process import WorkerProcess
from boxwright.serve.wire import Head

_log = get_logger(__name__)
_TRIES = 2
_LONGEST_PAUSE_S = 10.0
_HANG_S = 5.0  # after the deadline of its request a worker is taken for hanging
_MOST_WAITING = 4096


class Job:
    """A request on its way to a worker."""

    __slots__ = ("answer", "body", "deadline", "head", "started", "timer", "tries", "waited")

    def __init__(self, head: Head, body: bytes, deadline: float, answer: "asyncio.Future[Answer]") -> None:
        self.head, self.body, self.deadline, self.answer = head, body, deadline, answer
        self.tries = 0
        self.waited = False
        self.started = False
        self.timer: asyncio.TimerHandle | None = None


class Pool:
    """Starts the workers of one version of a model, gives them requests and replaces those that die."""

    def __init__(self, name: str, config: ServeConfig, plan: WorkerPlan, metrics: Metrics) -> None:
        self.name, self.plan = name, plan
        self.facts: dict[str, Any] = {}
        self._config, self._metrics = config, metrics
        self._admission = Admission(parallel=plan.parallel, max_wait_s=config.max_wait_ms / 1000)
        self._queue: deque[Job] = deque()
        self._workers: dict[int, WorkerProcess] = {}  # by their number in the plan
        self._closed = False
        self._ids = 0
        self._jobs: dict[int, Job] = {}  # those at workers
        self._users = 0  # requests that have chosen this pool, also while their bodies are read
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._starts: set[asyncio.Task[None]] = set()

    @property
    def ready(self) -> int:
        """How many workers answer requests."""
        return sum(worker.ready for worker in self._workers.values())

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """How many requests are at workers."""
        return len(self._jobs)

    def memory(self) -> dict[int, int]:
        """Return the resident bytes of each worker by its process id."""
        return {worker.pid: resident_bytes(worker.pid) for worker in self._workers.values() if worker.ready}

    async def start(self) -> None:
        """Start all workers and wait until each is ready.

        Raises:
            CheckpointError: the model can't be loaded, or fails its self-check.
            WorkerError: a worker died while it loaded the model.
        """
        starting = [self._begin(self._start(number)) for number in range(len(self.plan.cpus))]
        try:
            await asyncio.gather(*starting)
        except BaseException:
            await self.close()  # also those that still load
            raise

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the workers until the block ends, also if a new version replaces them meanwhile."""
        self._users += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._idle.set()

    def check_room(self) -> None:
        """Refuse a request before its body is read.

        Raises:
            Overloaded: it would have to wait too long.
        """
        waiting = self._count_waiting()
        self._admission.arrived(time.monotonic(), waiting)
        if waiting >= 0:
            self._refuse()

    def _count_waiting(self) -> int:
        return len(self._queue) + len(self._jobs) - self.plan.parallel

    def _refuse(self) -> None:
        waiting = self._count_waiting()
        if not self._admission.may_wait(waiting) or len(self._queue) >= _MOST_WAITING:
            self._metrics.rejections.add(self.name, "queue")
            wait_s = max(1.0, self._admission.wait_s(waiting))
            raise Overloaded("The server has more requests than it can answer. Try again later.", wait_s)

    def submit(self, head: Head, body: bytes, deadline: float, *, patient: bool = False) -> Job:
        """Give a request to a worker, or let it wait for one; `patient` ones are part of an admitted request.

        Raises:
            Overloaded: it would have to wait too long.
        """
        if self._closed:
            raise Overloaded("The server is ending.", 1.0)
        loop = asyncio.get_running_loop()
        job = Job(head, body, deadline, loop.create_future())
        worker = self._free_worker() if not self._queue else None
        if worker is None:
            if not patient:
                self._refuse()
            job.waited = True
            self._queue.append(job)
        job.timer = loop.call_later(max(deadline - time.monotonic(), 0), self._expire, job)
        if worker is not None:
            self._send(worker, job)
        return job

    def cancel(self, job: Job) -> None:
        """Give up a request: its client has left."""
        if not job.answer.done():
            job.answer.cancel()
        if not job.started:  # its worker may hang, which the timer notices
            self._forget(job)

    async def close(self, *, within_s: float = 0.0) -> None:
        """Wait until no request uses the pool, then end the workers."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        self._closed = True
        for task in self._starts:
            task.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        for job in [*self._queue, *self._jobs.values()]:
            self._fail(job, 503, "The server is ending.")
        await asyncio.gather(*(worker.end() for worker in self._workers.values()))

    def _free_worker(self) -> WorkerProcess | None:
        best, least = None, self.plan.capacity
        for worker in self._workers.values():
            if worker.ready and len(worker.busy_with) < least:
                best, least = worker, len(worker.busy_with)
        return best

    def _send(self, worker: WorkerProcess, job: Job) -> None:
        self._ids += 1
        job.tries += 1
        job.started = True
        job.head["id"] = self._ids
        job.head["alone"] = not self._jobs
        self._jobs[self._ids] = job
        worker.send(job.head, job.body)

    def _expire(self, job: Job) -> None:
        """Answer a request whose deadline has passed; a worker that does not return from it is replaced."""
        for worker in self._workers.values():
            if job.head.get("id") in worker.busy_with:
                asyncio.get_running_loop().call_later(_HANG_S, worker.kill_if_hanging, job.head["id"])
        if not job.answer.done():
            self._metrics.rejections.add(self.name, "deadline")
            self._fail(job, 504, f"There was no answer within {self._config.timeout_s:g} s.")

    def _fail(self, job: Job, status: int, text: str) -> None:
        if not job.answer.done():
            job.answer.set_result(Answer(status, JSON, error_body(text), {}))
        self._forget(job)

    def _forget(self, job: Job) -> None:
        if job.timer is not None:
            job.timer.cancel()
        if not job.started:
            with suppress(ValueError):
                self._queue.remove(job)

    def dispatch(self) -> None:
        """Give waiting requests to workers that have room."""
        while self._queue and (worker := self._free_worker()) is not None:
            job = self._queue.popleft()
            waited_s = time.monotonic() - job.head["arrived"]
            if self._admission.overloaded and waited_s > 2 * self._admission.limit_s and not job.tries:
                self._metrics.rejections.add(self.name, "queue")
                self._fail(job, 429, "The server has more requests than it can answer. Try again later.")
                continue
            self._send(worker, job)

    def answered(self, head: Head, body: bytes) -> None:
        """Take the answer of a worker."""
        job = self._jobs.pop(head["id"])
        self._admission.answered(head["service_s"], time.monotonic())
        if not job.answer.done():
            job.answer.set_result(
                Answer(head["status"], head["kind"], body, head["timings_ms"], extra=head.get("extra"))
            )
        if job.timer is not None:
            job.timer.cancel()
        self.dispatch()

    def lost(self, worker: WorkerProcess) -> None:
        """Give the requests of a dead worker to another one, once, and replace the worker."""
        for number in sorted(worker.busy_with, reverse=True):
            job = self._jobs.pop(number)
            job.started = False
            if job.answer.done():
                self._forget(job)
                continue
            if job.tries < _TRIES and not self._closed:
                self._queue.appendleft(job)
            else:
                self._fail(job, 503, "The worker died; so did the one before it on this request.")
        if not self._closed:
            self._metrics.restarts.add(self.name)
            self._begin(self._restart(worker.number))
            self.dispatch()

    def _begin(self, start: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(start)
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)
        return task

    async def _start(self, number: int) -> None:
        values = self.plan.start_values(self._config, self.name, number)
        worker = WorkerProcess(
            number, values, max_pixels=self._config.max_pixels, answered=self.answered, lost=self.lost
        )
        self.facts = await worker.start()
        self._admission.answered(self.facts["service_s"], time.monotonic())
        self._workers[number] = worker

    async def _restart(self, number: int) -> None:
        pause_s = 0.0
        while not self._closed:
            await asyncio.sleep(pause_s)
            try:
                await self._start(number)
            except BoxwrightError as error:
                _log.error("%s", error)
                pause_s = min(max(2 * pause_s, 0.5), _LONGEST_PAUSE_S)
            else:
                self.dispatch()
                return
