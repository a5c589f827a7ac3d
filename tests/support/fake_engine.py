"""An engine whose machines are only names: its agents are threads of the test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from boxwright.core.errors import UsageError
from boxwright.core.world import World
from boxwright.launchers.agent import serve
from boxwright.launchers.driver import run_on_engine
from boxwright.launchers.engine import EngineLauncher, Placement
from boxwright.launchers.placement import make_workers_anywhere
from boxwright.launchers.wire import Invitation, Listener


@dataclass
class FakeEngine:
    """An engine with one slot on each of these machines.

    Attributes:
        machines: their names.
        calls: whether agents call the driver.
        lost: what the engine says of its agents.
        starts: how often agents were asked for.
    """

    machines: list[str]
    calls: bool = True
    lost: str | None = None
    starts: int = 0

    def run(self, job: Callable[[World], object], count: int, **settings: Any) -> object:
        """Run a job in `count` workers, with settings of `EngineLauncher`."""
        launcher, workers = EngineLauncher(**settings), make_workers_anywhere(count)
        return run_on_engine(launcher.pack_job(job, workers), workers, self, launcher)

    def listen(self) -> Listener:
        return Listener("127.0.0.1")

    @contextmanager
    def place(
        self, invitation: Invitation, count: int, least: int, wait: Callable[[float], None]
    ) -> Iterator[Placement]:
        self.starts += 1
        count = min(count, len(self.machines))
        if count < least:
            raise UsageError(f"There is room for {count}.")
        agents = [
            threading.Thread(target=serve, args=(invitation, slot, node))
            for slot, node in enumerate(self.machines[:count])
            if self.calls
        ]
        for agent in agents:
            agent.start()
        try:
            yield Placement(count=count, cpus=1, failure=lambda: self.lost)
        finally:
            for agent in agents:
                agent.join()
