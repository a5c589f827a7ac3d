"""The models of a server by name, and how a new version of one replaces the running one."""

import asyncio
from collections.abc import Iterator
from typing import Any

from boxwright.core.errors import BoxwrightError, suggest
from boxwright.core.log import get_logger
from boxwright.serve.config import ServeConfig
from boxwright.serve.metrics import Metrics
from boxwright.serve.plan import WorkerPlan, plan_workers
from boxwright.serve.pool import Pool
from boxwright.serve.replies import Refusal

_log = get_logger(__name__)


class ServedModel:
    """One model: the workers of its present version."""

    def __init__(self, name: str, config: ServeConfig, metrics: Metrics) -> None:
        self.name = name
        self.version = 0
        self.pool: Pool | None = None
        self._config, self._metrics = config, metrics
        self._changing = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self.plan: WorkerPlan = plan_workers(config.models[name], config)

    @property
    def ready(self) -> bool:
        """Whether a worker answers requests."""
        return self.pool is not None and self.pool.ready > 0

    async def load(self) -> None:
        """Start workers with the files as they are now, check them, and let them take over; the old ones finish.

        Raises:
            BoxwrightError: the files can't be served. The old workers go on.
        """
        async with self._changing:
            try:
                plan = plan_workers(self._config.models[self.name], self._config)
                pool = Pool(self.name, self._config, plan, self._metrics)
                await pool.start()
            except BoxwrightError:
                self._metrics.reloads.add(self.name, "failed")
                raise
            old, self.pool, self.plan = self.pool, pool, plan
            self.version += 1
            self._metrics.reloads.add(self.name, "loaded")
            if old is not None:
                task = asyncio.get_running_loop().create_task(old.close(within_s=self._config.timeout_s))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Wait for the accepted requests and end the workers."""
        if self.pool is not None:
            await self.pool.close(within_s=self._config.timeout_s)
        await asyncio.gather(*self._closing)

    def describe(self) -> dict[str, Any]:
        """Return what `/models` shows."""
        facts = self.pool.facts if self.pool is not None else {}
        spec = facts.get("spec", {})
        return {
            "name": self.name,
            "version": self.version,
            "ready": self.ready,
            "runtime": facts.get("runtime"),
            "precision": facts.get("precision"),
            "size_hw": spec.get("size_hw"),
            "classes": spec.get("names"),
            "workers": self.plan.reason,
        }


class Models:
    """All models by name."""

    def __init__(self, config: ServeConfig, metrics: Metrics) -> None:
        self._models = {name: ServedModel(name, config, metrics) for name in config.models}
        self._default = next(iter(self._models.values()))
        self._metrics = metrics
        metrics.collect.append(self._measure)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def find(self, name: str | None) -> ServedModel:
        """Return the model of a name, or the first one.

        Raises:
            Refusal: there is none.
        """
        if name is None:
            return self._default
        model = self._models.get(name)
        if model is None:
            names = ", ".join(self._models)
            raise Refusal(404, f"There is no model {name[:100]!r}.{suggest(name[:100], self._models)} Models: {names}.")
        return model

    @property
    def ready(self) -> bool:
        """Whether every model has a worker that answers."""
        return all(model.ready for model in self)

    async def load(self) -> None:
        """Load all models for the first time; raises as `ServedModel.load` does."""
        await asyncio.gather(*(model.load() for model in self))

    async def reload(self) -> None:
        """Load a new version of every model; one that can't be loaded stays as it is, with a line in the log."""
        for model in self:
            try:
                await model.load()
                _log.info("%s: version %d is loaded", model.name, model.version)
            except BoxwrightError as error:
                _log.error("%s stays at version %d: %s", model.name, model.version, error)

    async def close(self) -> None:
        """End all workers."""
        await asyncio.gather(*(model.close() for model in self))

    def _measure(self) -> None:
        self._metrics.memory.values.clear()
        for model in self:
            pool = model.pool
            self._metrics.waiting.set(pool.waiting if pool else 0, model.name)
            self._metrics.running.set(pool.running if pool else 0, model.name)
            self._metrics.workers.set(pool.ready if pool else 0, model.name)
            for pid, size in pool.memory().items() if pool else ():
                self._metrics.memory.set(size, model.name, str(pid))
