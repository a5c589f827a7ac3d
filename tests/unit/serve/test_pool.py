"""How the workers of a model are started, and how one that hangs is found; the processes are fakes."""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from boxwright.core.errors import WorkerError
from boxwright.serve import pool as module
from boxwright.serve.config import ServeConfig
from boxwright.serve.metrics import Metrics
from boxwright.serve.plan import WorkerPlan
from boxwright.serve.pool import Pool
from boxwright.serve.process import WorkerProcess


class FakeProcess:
    """A worker that never answers; the test says how it starts."""

    def __init__(self, number: int, start: Callable[[], Any]) -> None:
        self.number, self.pid, self.ready = number, 1000 + number, False
        self.busy_with: set[int] = set()
        self.killed, self.ended = asyncio.Event(), asyncio.Event()
        self._start = start

    async def start(self) -> dict[str, Any]:
        try:
            await self._start()
        except BaseException:
            await self.end()
            raise
        self.ready = True
        return {"service_s": 0.01}

    def send(self, head: dict[str, Any], _body: bytes) -> None:
        self.busy_with.add(head["id"])

    def kill_if_hanging(self, number: int) -> None:
        if number in self.busy_with:
            self.killed.set()

    async def end(self) -> None:
        self.ended.set()


async def at_once() -> None:
    return


async def never() -> None:
    await asyncio.Event().wait()


async def failing() -> None:
    raise WorkerError("It was killed.")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeProcess]:
    """The workers that a pool has made, in their order."""
    return []


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, made: list[FakeProcess]) -> Callable[..., Pool]:
    def make_pool(*starts: Callable[[], Any]) -> Pool:
        def create(number: int, *_: Any, **__: Any) -> FakeProcess:
            made.append(FakeProcess(number, starts[number]))
            return made[-1]

        monkeypatch.setattr(module, "WorkerProcess", create)
        plan = WorkerPlan(cpus=((),) * len(starts), streams=1, tunings=())
        return Pool("toy", ServeConfig(models={"toy": Path("toy.onnx")}), plan, Metrics())

    return make_pool


def test_when_one_worker_can_not_start_the_others_are_ended(make: Callable[..., Pool], made: list[FakeProcess]) -> None:
    async def run() -> None:
        with pytest.raises(WorkerError, match="It was killed"):
            await make(failing, never, at_once).start()
        assert all(one.ended.is_set() for one in made)

    asyncio.run(run())


def test_a_worker_that_hangs_is_found_although_its_clients_have_left(
    make: Callable[..., Pool], made: list[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HANG_S", 0)

    async def run() -> None:
        pool = make(at_once)
        await pool.start()
        now = time.monotonic()
        jobs = [pool.submit({"arrived": now}, b"", now) for _ in range(pool.plan.capacity)]
        for job in jobs:
            pool.cancel(job)
        await asyncio.wait_for(made[0].killed.wait(), 30)
        await pool.close()

    asyncio.run(run())


def test_a_process_that_the_system_refuses_is_an_error_after_which_a_pool_tries_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))

    async def run() -> None:
        worker = WorkerProcess(
            0, {"name": "toy"}, max_pixels=1, answered=lambda _head, _body: None, lost=lambda _worker: None
        )
        with pytest.raises(WorkerError, match=r"'toy'.*No such file"):
            await worker.start()

    asyncio.run(run())
