"""An agent: what an engine (Ray, Spark) runs on its machines to start one worker there and speak for it.

The worker is a fresh child process like any other launcher's. Its output and its outcome go to the driver; when the
driver is gone, the worker is ended at once, whatever the engine notices and when.
"""

import fcntl
import hashlib
import os
import selectors
import socket
import struct
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import WorkerError
from boxwright.launchers.base import WorkerSpec
from boxwright.launchers.files import FILES, Bring, receiving
from boxwright.launchers.folder import launch_folder
from boxwright.launchers.group import find_free_port
from boxwright.launchers.outcome import write_failure
from boxwright.launchers.placement import settle_here
from boxwright.launchers.process import WorkerProcess, write_start
from boxwright.launchers.wire import Channel, Invitation, call

_TURN_S = 0.1
_HUNG_UP_S = 0.01
_KILLED_S = 5.0
_CHUNK = 1 << 16
_SIOCGIFADDR = 0x8915
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What an agent tells first.

    Attributes:
        slot: which of the engine's places it has.
        node: its machine, as the engine calls it.
        address: where others reach this machine.
        port: one that is free there, should its worker be the first.
    """

    slot: int
    node: str
    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What the driver answers: the worker to start.

    Attributes:
        spec: its place among all.
        attempt: how often the group was started before.
        master_addr: where the first worker listens.
        master_port: the port it listens on.
        job: the packed job.
        cpus: how many logical cpus the engine grants each worker.
        path: the driver's search path; what is not there on this machine is left out.
        argv: the driver's arguments.
        cwd: the driver's folder, used where it exists.
    """

    spec: WorkerSpec
    attempt: int
    master_addr: str
    master_port: int
    job: bytes
    cpus: int
    path: tuple[str, ...]
    argv: tuple[str, ...]
    cwd: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """Some of what the worker wrote to a stream."""

    stream: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the worker ended, with the files it left about it."""

    status: int
    files: dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The driver wants the worker to end: asked at once, killed when its patience is over."""

    patience_s: float


def serve(invitation: Invitation, slot: int, node: str, bring: Bring | None = None) -> None:
    """Call the driver, start the worker that it names, and stay until that has ended or the driver is gone.

    Args:
        invitation: how to reach the driver.
        slot: which of the engine's places this is.
        node: the machine, as the engine calls it.
        bring: puts the launch's files into a folder here; None where there are none.

    Raises:
        WorkerError: the driver can't be reached.
    """
    channel = call(invitation)
    try:
        channel.send(Hello(slot=slot, node=node, address=channel.own_address, port=find_free_port()))
        start = _wait_for_start(channel)
        if start is not None:
            with launch_folder() as folder, ExitStack() as stack:
                if bring is None or (start := _receive(channel, start, folder, stack, invitation, bring)):
                    _Agent(channel, start, folder).run()
            with suppress(EOFError):
                while True:  # the driver hangs up when it has heard all
                    channel.fill()
    except (OSError, EOFError):
        pass  # the driver is gone: nobody is left to tell
    finally:
        channel.close()


def _wait_for_start(channel: Channel) -> Start | None:
    while True:
        channel.fill()
        for message in channel.take():
            return message if isinstance(message, Start) else None


def _receive(
    channel: Channel, start: Start, folder: Path, stack: ExitStack, invitation: Invitation, bring: Bring
) -> Start | None:
    """Have the launch's files here and return a start whose worker knows where; None if the driver was told why not."""
    key = hashlib.sha256(invitation.key).hexdigest()[:32]  # another one for every attempt
    try:
        files = stack.enter_context(receiving(key, bring))
    except OSError as error:
        sentence = (
            f"The launch's files could not be brought to {socket.gethostname()!r}: {error}. They go to "
            f"{tempfile.gettempdir()!r} there: make room, or set TMPDIR where the engine is started."
        )
        answers = folder / "failed"
        answers.mkdir()
        write_failure(answers, start.spec.rank, WorkerError(sentence), main_by_name=False)
        channel.send(Ended(status=1, files={file.name: file.read_bytes() for file in answers.iterdir()}))
        return None
    return replace(start, spec=replace(start.spec, env=((FILES, str(files)), *start.spec.env)))


class _Agent:
    """One worker, from its start to its end, all handled in the calling thread: the worker dies with that thread."""

    def __init__(self, channel: Channel, start: Start, folder: Path) -> None:
        self._channel = channel
        self._kill_s = _NEVER
        self._parent = os.getppid()
        own = [os.path.abspath(entry) for entry in sys.path]
        path = [*own, *(entry for entry in start.path if entry not in own and os.path.exists(entry))]
        write_start(folder, start.job, None, path=path, argv=start.argv)
        spec = settle_here(start.spec, read_cpu(), start.cpus) if start.spec.anywhere else start.spec
        self._process = WorkerProcess(
            _towards(channel.own_address, spec),
            folder,
            attempt=start.attempt,
            master_addr=start.master_addr,
            master_port=start.master_port,
            cwd=start.cwd if os.path.isdir(start.cwd) else None,
        )

    def run(self) -> None:
        """Pass on what the worker writes until it has ended, and then how."""
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._channel, selectors.EVENT_READ)
                for name, fd in self._process.streams.items():
                    os.set_blocking(fd, False)
                    selector.register(fd, selectors.EVENT_READ, name)
                while self._process.poll() is None:
                    self._turn(selector)
                for name, fd in self._process.streams.items():
                    while self._pass_on(fd, name):
                        pass
            files = {file.name: file.read_bytes() for file in self._process.answers.iterdir()}
            self._channel.send(Ended(status=self._process.status or 0, files=files))
        finally:
            self._process.kill()
            end_s = time.monotonic() + _KILLED_S
            while self._process.poll() is None and time.monotonic() < end_s:
                time.sleep(_HUNG_UP_S)
            self._process.close()

    def _turn(self, selector: selectors.BaseSelector) -> None:
        hung_up = len(selector.get_map()) < 1 + len(self._process.streams)
        for key, _ in selector.select(_HUNG_UP_S if hung_up else _TURN_S):
            if key.fileobj is self._channel:
                self._listen()
            elif self._pass_on(key.fd, key.data) == 0:
                selector.unregister(key.fd)
        if time.monotonic() >= self._kill_s:
            self._process.kill()
        if os.getppid() != self._parent:
            # Ray lets actors live on for a while after its own process on a machine has died.
            raise EOFError("The engine's process on this machine has ended.")

    def _listen(self) -> None:
        self._channel.fill()
        for message in self._channel.take():
            if isinstance(message, Stop):
                self._process.terminate()
                self._kill_s = min(self._kill_s, time.monotonic() + message.patience_s)

    def _pass_on(self, fd: int, name: str) -> int | None:
        """Send some of what can be read; return how many bytes: 0 at the end, None if there are none just now."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return None
        if data:
            self._channel.send(Printed(stream=name, data=data))
        return len(data)


def _towards(address: str, spec: WorkerSpec) -> WorkerSpec:
    """Have gloo use the interface that leads to the others: by itself it asks what the host name means.

    On many machines that is 127.0.0.1, where nobody else can reach it.
    """
    if _GLOO_INTERFACE in os.environ or _GLOO_INTERFACE in dict(spec.env):
        return spec
    name = find_interface(address)
    return spec if name is None else replace(spec, env=((_GLOO_INTERFACE, name), *spec.env))


def find_interface(address: str) -> str | None:
    """Return the network interface that has an IPv4 address; None if none has.

    Example:
        >>> find_interface("127.0.0.1")
        'lo'
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with suppress(OSError):  # it has no IPv4 address
                if socket.inet_ntoa(fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)[20:24]) == address:
                    return name
    return None
