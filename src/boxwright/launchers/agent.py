"""An agent: what an engine (Ray, Spark) runs on its machines to start one worker there and report on it.

The worker is a fresh child process, as with any other launcher. Its output and its outcome go to the driver. When the
driver is gone, the agent kills the worker at once, whatever the engine notices and when.
"""

import hashlib
import os
import socket
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import WorkerError
from boxwright.launchers.base import WorkerSpec
from boxwright.launchers.files import FILES, receiving
from boxwright.launchers.folder import launch_folder
from boxwright.launchers.network import find_free_port, use_interface
from boxwright.launchers.outcome import Outcome, describe_failure
from boxwright.launchers.placement import settle_here
from boxwright.launchers.process import WorkerProcess, write_start
from boxwright.launchers.supervisor import ENDING_S, TURN_S
from boxwright.launchers.wire import Invitation, call, fetch_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """An agent's first message."""

    slot: int  # its number among the engine's agents
    node: str  # its machine, as the engine calls it
    address: str  # where others reach this machine
    port: int  # a free one, in case its worker is the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The driver's answer: the worker to start."""

    spec: WorkerSpec
    attempt: int  # how often the workers were started before
    master_addr: str
    master_port: int
    job: bytes
    cpus: int  # how many logical cpus the engine grants each worker
    path: tuple[str, ...]  # the driver's search path; entries that do not exist on this machine are left out
    argv: tuple[str, ...]
    cwd: str  # the driver's folder, used if it exists
    has_files: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """Some of the worker's output."""

    stream: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the worker ended, and how long ago."""

    status: int | None
    outcome: Outcome | None
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The driver's request to end the worker: asked at once, killed after `patience_s`."""

    patience_s: float


def serve(invitation: Invitation, slot: int, node: str) -> None:
    """Call the driver, start the worker that it names, and stay until the worker has ended or the driver is gone.

    Raises:
        WorkerError: the driver can't be reached.
    """
    connection, address = call(invitation)
    with connection, suppress(OSError, EOFError):  # the driver is gone: there is nothing to report to
        connection.send(Hello(slot=slot, node=node, address=address, port=find_free_port()))
        connection.poll(None)
        start: Start = connection.recv()
        with launch_folder() as folder, ExitStack() as stack:
            try:
                if start.has_files:
                    key = hashlib.sha256(invitation.key).hexdigest()[:32]  # a different one for every attempt
                    files = stack.enter_context(receiving(key, partial(fetch_files, invitation)))
                    start = replace(start, spec=replace(start.spec, env=((FILES, str(files)), *start.spec.env)))
            except OSError as error:
                connection.send(Ended(status=1, outcome=describe_failure(_explain(error))))
            else:
                _run_worker(connection, address, start, folder)
        while connection.poll(None):  # the driver hangs up when it has read all
            connection.recv()


def _explain(error: OSError) -> WorkerError:
    return WorkerError(
        f"The launch's files could not be brought to {socket.gethostname()!r}: {error}. They go to "
        f"{tempfile.gettempdir()!r} there: make room, or set TMPDIR where the engine is started."
    )


def _run_worker(connection: Connection, address: str, start: Start, folder: Path) -> None:
    """Start the worker in this thread, forward its output until it has ended, and report how."""
    parent = os.getppid()
    own = [os.path.abspath(entry) for entry in sys.path]
    path = [*own, *(entry for entry in start.path if entry not in own and os.path.exists(entry))]
    write_start(folder, start.job, None, path=path, argv=start.argv)
    spec = settle_here(start.spec, read_cpu(), start.cpus) if start.spec.anywhere else start.spec
    process = WorkerProcess(
        use_interface(spec, address),
        folder,
        lambda name, data: connection.send(Printed(stream=name, data=data)),
        attempt=start.attempt,
        master_addr=start.master_addr,
        master_port=start.master_port,
        cwd=start.cwd if os.path.isdir(start.cwd) else None,
    )
    try:
        while process.poll() is None:
            sources = process.sources
            for ready in wait([connection, *sources], TURN_S if sources else ENDING_S):
                if isinstance(ready, int):
                    process.read(ready)
                else:
                    stop: Stop = connection.recv()
                    process.stop(stop.patience_s)
            if os.getppid() != parent:
                # Ray lets actors live on for a while after its own process on a machine has died.
                raise EOFError("The engine's process on this machine has ended.")
        age_s = 0.0 if process.ended_s is None else time.monotonic() - process.ended_s
        connection.send(Ended(status=process.status, outcome=process.outcome, age_s=age_s))
    finally:
        process.close()
