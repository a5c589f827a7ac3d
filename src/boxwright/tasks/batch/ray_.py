"""Engine `ray`: a pool of actors, each with one part at a time.

It uses Ray core, not Ray Data: workers read and write their parts themselves, so Ray Data would carry nothing but part
numbers, and it needs pandas and a large object store.
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from boxwright.core import catalogue
from boxwright.core.errors import UsageError, WorkerError
from boxwright.core.log import get_logger
from boxwright.tasks.batch.inputs import Part
from boxwright.tasks.batch.worker import ModelFiles, PartResult, PartWorker, WorkerSettings, is_hopeless

_log = get_logger(__name__)
_TRIES = 3
_TURN_S = 1.0


def run_parts(
    settings: WorkerSettings, model: ModelFiles, parts: list[Part], report: Callable[[int], None]
) -> list[PartResult]:
    """Return the result of each part; by default with one worker per CPU of the cluster.

    Raises:
        UsageError: no worker could be started.
        WorkerError: a part crashed its worker several times, or a worker raised an unexpected error.
    """
    config = settings.config
    with catalogue.load("engine", "ray")(config.address):
        threads = config.threads or 1
        room = sum(int(node["Resources"].get("CPU", 0)) // threads for node in ray.nodes() if node["Alive"])
        settings = replace(settings, threads=threads if model.takes_threads else None)
        pool = _Pool(settings, model, threads, min(config.workers or max(1, room), len(parts)))
        try:
            return pool.run(parts, report, config.start_timeout_s)
        finally:
            pool.close()


class _Pool:
    def __init__(self, settings: WorkerSettings, model: ModelFiles, cpus: int, size: int) -> None:
        # Ray must not restart actors: a restarted one keeps its part while it waits for room that may never come.
        self._class = ray.remote(PartWorker).options(num_cpus=cpus, max_restarts=0)
        self._cpus, self._settings, self._model = cpus, settings, ray.put(model)
        self._waiting: dict[Any, tuple[Any, Part | None]] = {}
        for _ in range(size):
            self._start()

    def _start(self) -> None:
        actor = self._class.remote(self._settings, self._model)
        self._waiting[actor.ready.remote()] = (actor, None)

    def run(self, parts: list[Part], report: Callable[[int], None], start_timeout_s: float) -> list[PartResult]:
        todo, crashes = deque(parts), Counter[int]()
        results: list[PartResult] = []
        seen_s = time.monotonic()
        while len(results) < len(parts):
            done, _ = ray.wait(list(self._waiting), num_returns=1, timeout=_TURN_S)
            if not done:
                busy = any(part is not None for _, part in self._waiting.values())
                if not busy and time.monotonic() - seen_s > start_timeout_s:
                    raise UsageError(
                        f"Ray started no worker with {self._cpus} CPUs in {start_timeout_s:g} s: it has "
                        f"{ray.available_resources().get('CPU', 0):g} free of "
                        f"{ray.cluster_resources().get('CPU', 0):g}. Ask for fewer threads, or wait for others to end."
                    )
                continue
            seen_s = time.monotonic()
            actor, part = self._waiting.pop(done[0])
            try:
                result = ray.get(done[0])
            except RayTaskError as error:
                raise WorkerError(f"A worker failed{_on(part)}:\n{error}") from error
            except RayActorError as error:
                number = -1 if part is None else part.number
                crashes[number] += 1
                if crashes[number] >= _TRIES:
                    raise WorkerError(
                        f"Workers died {_TRIES} times{_on(part)} (out of memory?): {error}\nWhat is finished stays in "
                        f"{self._settings.out!r}: the same command resumes with the rest."
                    ) from error
                _log.warning("A worker died%s; another one replaces it.", _on(part))
                if part is not None:
                    todo.appendleft(part)
                self._start()
                continue
            if part is not None:
                results.append(result)
                report(len(results))
                if is_hopeless(results):
                    break
            if todo:
                part = todo.popleft()
                self._waiting[actor.run.remote(part)] = (actor, part)
            else:
                ray.kill(actor)
        return results

    def close(self) -> None:
        for actor, _ in self._waiting.values():
            with suppress(RayError):
                ray.kill(actor)


def _on(part: Part | None) -> str:
    return " at its start" if part is None else f" at part {part.number}"
