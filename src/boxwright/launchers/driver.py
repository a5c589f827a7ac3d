"""The driver's side of a launch on an engine: it places agents, has each start a worker, and supervises these."""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from boxwright.core.log import get_logger
from boxwright.launchers.agent import Ended, Hello, Printed, Start, Stop
from boxwright.launchers.base import WorkerFailed, WorkerSpec
from boxwright.launchers.engine import Engine, EngineLauncher, Placement
from boxwright.launchers.interrupts import Interrupts, run_interruptible
from boxwright.launchers.output import make_relays
from boxwright.launchers.supervisor import TURN_S, Worker, supervise
from boxwright.launchers.wire import Listener

_SETTLE_S = 2.0
_log = get_logger(__name__)


def run_on_engine(job: bytes, workers: Sequence[WorkerSpec], engine: Engine, launcher: EngineLauncher) -> Any:
    """Run a packed job in a fresh process for each worker on the engine's machines; return the first one's result.

    Raises:
        UsageError: the engine has no room for the workers.
        WorkerFailed: a worker failed; all are stopped.
    """

    def run(interrupts: Interrupts) -> Any:
        return launcher.restart.run(lambda attempt: _run_once(attempt, job, workers, engine, launcher, interrupts))

    return run_interruptible(run)


def _run_once(
    attempt: int,
    job: bytes,
    workers: Sequence[WorkerSpec],
    engine: Engine,
    launcher: EngineLauncher,
    interrupts: Interrupts,
) -> Any:
    def wait(seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            interrupts.check()
            time.sleep(min(left_s, TURN_S))

    with closing(engine.listen()) as listener:
        listener.files = launcher.files
        least = launcher.min_workers or len(workers)
        with engine.place(listener.invitation, len(workers), least, wait) as placement, ExitStack() as connections:
            agents = _gather(listener, placement, connections, launcher.start_timeout_s, interrupts)
            if placement.count < len(workers):
                _log.warning(
                    "There is room for %d of %d workers, which min_workers=%d allows.",
                    placement.count, len(workers), least,
                )  # fmt: skip
            started = _start(agents, workers, placement.cpus, attempt, job, has_files=bool(launcher.files))
            return supervise(started, interrupts, launcher.patience, settle_s=_SETTLE_S)


class _RemoteWorker(Worker):
    """A worker on one of the engine's machines, seen through the connection to its agent."""

    def __init__(self, connection: Connection, hello: Hello) -> None:
        super().__init__(rank=-1)  # not known yet
        self.connection, self.hello = connection, hello
        self._is_lost = False

    def start(self, start: Start) -> None:
        self.rank = start.spec.rank
        self._forward = make_relays(start.spec.rank, start.spec.world_size)
        self._send(start)

    @property
    def sources(self) -> list[Connection]:
        return [self.connection]

    def read(self, source: Connection) -> None:
        try:
            message = source.recv()
        except (EOFError, OSError):
            self._is_lost = True
            self._end(0.0)
            return
        if isinstance(message, Printed):
            self._forward(message.stream, message.data)
        elif isinstance(message, Ended):
            self.status, self.outcome = message.status, message.outcome
            self._end(message.age_s)

    def poll(self) -> None:
        pass  # its agent reports its end

    def stop(self, patience_s: float) -> None:
        self._send(Stop(patience_s=patience_s))

    def kill(self) -> None:
        self.stop(0.0)

    def make_error(self) -> WorkerFailed:
        if not self._is_lost:
            return super().make_error()
        return WorkerFailed(
            f"Worker {self.rank} was lost with its agent on {self.hello.node!r}: the machine, its container or the "
            "engine's process there has gone. The engine's own log says more.",
            rank=self.rank,
            kind="death",
        )

    def _send(self, message: object) -> None:
        with suppress(OSError):  # `read` will notice
            self.connection.send(message)

    def _end(self, age_s: float) -> None:
        self.ended_s = time.monotonic() - age_s
        for name in ("stdout", "stderr"):
            self._forward(name, b"")


def _gather(
    listener: Listener, placement: Placement, connections: ExitStack, timeout_s: float, interrupts: Interrupts
) -> list[_RemoteWorker]:
    """Return all agents once they have called; an agent whose connection is closed kills its worker."""
    agents: list[_RemoteWorker] = []
    end_s = time.monotonic() + timeout_s
    while len(agents) < placement.count:
        interrupts.check()
        arrived = listener.take(TURN_S)
        if arrived is not None:
            agents.append(_RemoteWorker(connections.enter_context(arrived[0]), arrived[1]))
            continue
        # An agent sends nothing before its worker starts: if there is something to read, it is the connection's end.
        lost = placement.failure() or next((agent.hello.node for agent in agents if agent.connection.poll()), None)
        if lost is not None:
            raise WorkerFailed(f"An agent was lost before its worker started: {lost}.", kind="death")
        if time.monotonic() > end_s:
            raise WorkerFailed(
                f"Only {len(agents)} of {placement.count} agents have called within {timeout_s:g} s. "
                "Look at the engine's own log, or raise start_timeout_s.",
                kind="death",
            )
    return agents


def _start(
    agents: Sequence[_RemoteWorker],
    workers: Sequence[WorkerSpec],
    cpus: int,
    attempt: int,
    job: bytes,
    *,
    has_files: bool,
) -> list[_RemoteWorker]:
    """Give each agent its worker, and return them by rank; ranks of one machine are consecutive."""
    nodes: dict[str, list[_RemoteWorker]] = {}
    for agent in sorted(agents, key=lambda agent: agent.hello.slot):
        nodes.setdefault(agent.hello.node, []).append(agent)
    ordered = [agent for peers in nodes.values() for agent in peers]
    for rank, agent in enumerate(ordered):
        peers = nodes[agent.hello.node]
        spec = replace(
            workers[rank],
            rank=rank,
            world_size=len(ordered),
            local_rank=peers.index(agent),
            local_world_size=len(peers),
            node_rank=list(nodes).index(agent.hello.node),
        )
        agent.start(
            Start(
                spec=spec,
                attempt=attempt,
                master_addr=ordered[0].hello.address,
                master_port=ordered[0].hello.port,
                job=job,
                cpus=cpus,
                path=tuple(os.path.abspath(entry) for entry in sys.path),
                argv=tuple(sys.argv),
                cwd=os.getcwd(),
                has_files=has_files,
            )
        )
    return ordered
