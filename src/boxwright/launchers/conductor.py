"""The driver's side of a launch on an engine: agents are placed, their workers started, heard, and ended together."""

import os
import selectors
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from boxwright.core.log import get_logger
from boxwright.launchers.agent import Ended, Hello, Printed, Start, Stop
from boxwright.launchers.base import WorkerFailed, WorkerSpec
from boxwright.launchers.engine import Engine, Placement, Terms, check_workers
from boxwright.launchers.folder import launch_folder, write_atomically
from boxwright.launchers.interrupts import Interrupts
from boxwright.launchers.outcome import make_error, read_outcome, read_result
from boxwright.launchers.output import Relay
from boxwright.launchers.wire import Channel

_TURN_S = 0.2
_SETTLE_S = 2.0
_KILLED_S = 10.0
_STREAMS = ("stdout", "stderr")
_log = get_logger(__name__)


class _Interrupted(BaseException):
    """Ends a run from the inside after Ctrl-C or SIGTERM; never seen outside this module."""


def run_on_engine(job: bytes, workers: Sequence[WorkerSpec], *, engine: Engine, terms: Terms) -> Any:
    """Run a packed job in one fresh process for each worker on the engine's machines; return the first one's result.

    Args:
        job: the job as `pack` gave it.
        workers: all ranks of one world; their machines are the engine's choice.
        engine: what starts the agents.
        terms: restarts, patience, how few will do.

    Raises:
        UsageError: the workers contradict each other, or the engine has no room for them.
        WorkerFailed: a worker failed; all are stopped.
    """
    check_workers(workers, terms)
    result = None
    interrupts = Interrupts()
    with interrupts, launch_folder() as folder, suppress(_Interrupted):
        result = terms.restart.run(
            lambda attempt: _Attempt(attempt, job, workers, engine, terms, folder, interrupts).run()
        )
    if interrupts.seen is not None:
        interrupts.deliver()
    return result


class _Peer:
    """One agent and its worker, as the driver sees them."""

    def __init__(self, channel: Channel, hello: Hello) -> None:
        self.channel, self.hello = channel, hello
        self.rank = -1
        self.relays: dict[str, Relay] = {}
        self.ended: Ended | None = None
        self.lost = False

    @property
    def is_over(self) -> bool:
        return self.ended is not None or self.lost

    def finish(self) -> None:
        for relay in self.relays.values():
            relay.finish()

    def send(self, message: object) -> None:
        with suppress(OSError):  # its end will be read, too
            self.channel.send(message)


class _Attempt:
    """One start of the whole group."""

    def __init__(
        self,
        number: int,
        job: bytes,
        workers: Sequence[WorkerSpec],
        engine: Engine,
        terms: Terms,
        folder: Path,
        interrupts: Interrupts,
    ) -> None:
        self._number, self._job, self._workers, self._interrupts = number, job, workers, interrupts
        self._engine, self._terms = engine, terms
        self._answers = folder / str(number)
        self._answers.mkdir()
        self._strangers: set[Channel] = set()
        self._peers: dict[Channel, _Peer] = {}
        self._ends: list[_Peer] = []
        self._selector = selectors.DefaultSelector()

    def run(self) -> Any:
        """Return the first worker's result."""
        self._listener = self._engine.listen()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._interrupts.at_once = lambda: self._ask_to_stop(0.0)
        try:
            least = self._terms.min_workers or len(self._workers)
            placement = self._engine.place(self._listener.invitation, len(self._workers), least, self._wait)
            try:
                self._gather(placement)
                self._start(placement)
                self._watch()
                failed = self._find_first_failure()
                self._stop()
            finally:
                self._hang_up()
                placement.close()
        finally:
            self._selector.close()
            self._listener.close()
        if self._interrupts.seen is not None:
            raise _Interrupted
        if failed is not None:
            raise self._make_error(failed)
        for peer in self._ends:
            if peer.ended is not None and peer.ended.status:
                _log.warning("Worker %d did its job, but then ended with status %d.", peer.rank, peer.ended.status)
        return read_result(self._answers)

    # The way in.

    def _wait(self, seconds: float) -> None:
        """Let time pass while the engine works; callers are greeted meanwhile."""
        end_s = time.monotonic() + seconds
        while (left := end_s - time.monotonic()) > 0:
            if self._interrupts.seen is not None:
                raise _Interrupted
            self._turn(min(left, _TURN_S))

    def _gather(self, placement: Placement) -> None:
        """Wait until all agents have called."""
        end_s = time.monotonic() + self._terms.start_timeout_s
        while len(self._peers) < placement.count:
            self._wait(_TURN_S)
            words = placement.failure()
            lost = [peer for peer in self._peers.values() if peer.lost]
            if words is not None or lost:
                raise WorkerFailed(
                    f"An agent was lost before its worker started: {words or lost[0].hello.node}.", kind="death"
                )
            if time.monotonic() > end_s:
                raise WorkerFailed(
                    f"Only {len(self._peers)} of {placement.count} agents have called within "
                    f"{self._terms.start_timeout_s:g} s. Look at the engine's own log, or raise start_timeout_s.",
                    kind="death",
                )

    def _start(self, placement: Placement) -> None:
        """Give each agent its worker; ranks of one machine follow each other."""
        if placement.count < len(self._workers):
            _log.warning(
                "There is room for %d of %d workers, and min_workers=%d allows it: the run goes on with %d.",
                placement.count, len(self._workers), self._terms.min_workers, placement.count,
            )  # fmt: skip
        nodes: dict[str, list[_Peer]] = {}
        for peer in sorted(self._peers.values(), key=lambda peer: peer.hello.slot):
            nodes.setdefault(peer.hello.node, []).append(peer)
        ordered = [peer for peers in nodes.values() for peer in peers]
        first = ordered[0].hello
        for node_rank, peers in enumerate(nodes.values()):
            for local_rank, peer in enumerate(peers):
                peer.rank = ordered.index(peer)
                prefix = f"[rank {peer.rank}] " if len(ordered) > 1 else ""
                peer.relays = {name: Relay(-1, name, prefix) for name in _STREAMS}
                spec = replace(
                    self._workers[peer.rank],
                    rank=peer.rank,
                    world_size=len(ordered),
                    local_rank=local_rank,
                    local_world_size=len(peers),
                    node_rank=node_rank,
                )
                peer.send(
                    Start(
                        spec=spec,
                        attempt=self._number,
                        master_addr=first.address,
                        master_port=first.port,
                        job=self._job,
                        cpus=placement.cpus,
                        path=tuple(os.path.abspath(entry) for entry in sys.path),
                        argv=tuple(sys.argv),
                        cwd=os.getcwd(),
                    )
                )

    # While they run.

    @property
    def _running(self) -> list[_Peer]:
        return [peer for peer in self._peers.values() if not peer.is_over]

    def _watch(self) -> None:
        """Wait until all have ended, one has failed, or the program is interrupted."""
        settled_s = float("inf")
        while self._running and self._interrupts.seen is None and time.monotonic() < settled_s:
            self._turn(_TURN_S)
            kinds = [kind for peer in self._ends if (kind := self._failure_kind(peer))]
            if any(kind != "communication" for kind in kinds):
                return
            if kinds:
                # Who lost the others is not to blame: in a moment the one who left will be seen.
                settled_s = min(settled_s, time.monotonic() + _SETTLE_S)

    def _stop(self) -> None:
        """End those that still run: the agents ask first, then kill."""
        patience = self._terms.patience
        patience_s = patience.after_failure_s if self._interrupts.seen is None else patience.after_interrupt_s
        if self._running:
            self._ask_to_stop(patience_s)
        end_s = time.monotonic() + patience_s + _KILLED_S
        while self._running and time.monotonic() < end_s:
            self._turn(_TURN_S)

    def _ask_to_stop(self, patience_s: float) -> None:
        for peer in self._running:
            peer.send(Stop(patience_s=patience_s))

    def _find_first_failure(self) -> _Peer | None:
        """Return the worker that failed first by itself, before we stopped any; None if all went well."""
        failed = [peer for peer in self._ends if self._failure_kind(peer)]
        return min(failed, key=lambda peer: self._failure_kind(peer) == "communication", default=None)

    def _failure_kind(self, peer: _Peer) -> str | None:
        if not peer.is_over:
            return None
        outcome = read_outcome(self._answers, peer.rank)
        if outcome is None:
            return "death"
        return None if outcome.ok else outcome.kind

    def _make_error(self, peer: _Peer) -> WorkerFailed:
        if peer.ended is not None:
            return make_error(self._answers, peer.rank, peer.ended.status)
        return WorkerFailed(
            f"Worker {peer.rank} was lost with its agent on {peer.hello.node!r}: the machine, its container or the "
            "engine's process there has gone. The engine's own log says more.",
            rank=peer.rank,
            kind="death",
        )

    # Listening.

    def _turn(self, limit_s: float) -> None:
        """Let callers in and hear what agents say, for so long at most."""
        for key, _ in self._selector.select(limit_s):
            if key.fileobj is self._listener:
                channel = self._listener.greet()
                self._strangers.add(channel)
                self._selector.register(channel, selectors.EVENT_READ, channel)
                continue
            channel = key.data
            try:
                channel.fill()
                if self._listener.admit(channel):
                    for message in channel.take():
                        self._hear(channel, message)
            except (EOFError, OSError) as error:
                self._selector.unregister(channel)
                self._lose(channel, error)

    def _hear(self, channel: Channel, message: object) -> None:
        if isinstance(message, Hello):
            self._strangers.discard(channel)
            self._peers[channel] = _Peer(channel, message)
            return
        peer = self._peers[channel]
        if isinstance(message, Printed):
            peer.relays[message.stream].feed(message.data)
        elif isinstance(message, Ended):
            for name, data in message.files.items():
                write_atomically(self._answers / name, data)
            peer.ended = message
            peer.finish()
            self._ends.append(peer)

    def _lose(self, channel: Channel, error: Exception) -> None:
        channel.close()
        if channel not in self._peers:
            self._strangers.discard(channel)
            _log.debug("A caller left: %s", error)
            return
        peer = self._peers[channel]
        if peer.ended is None:
            peer.lost = True
            peer.finish()
            self._ends.append(peer)

    def _hang_up(self) -> None:
        """Close all connections: an agent whose worker still runs kills it then."""
        for channel in [*self._strangers, *self._peers]:
            channel.close()
