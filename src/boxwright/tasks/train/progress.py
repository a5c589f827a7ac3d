"""How far a run is, told after every step, also across the border of the first process."""

import json
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

_LARGEST = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """How far a run is.

    Attributes:
        step: steps done.
        total: steps in all.
        epoch: epochs done, with a fraction.
        images_per_s: of whole training, data included.
        left_s: seconds to the end at that speed; None while it is not known.
        lr: the step's learning rate.
        memory_mb: the most memory that the first process has had.
        processes: how many there are.
        losses: the last ones that were read, by name; they are read every `print_interval` steps.
    """

    step: int
    total: int
    epoch: float = 0.0
    images_per_s: float = 0.0
    left_s: float | None = None
    lr: float = 0.0
    memory_mb: float = 0.0
    processes: int = 1
    losses: dict[str, float] = field(default_factory=dict)


Progress = Callable[[StepReport], None]


def clock(seconds: float | None) -> str:
    """Return a duration for people.

    Example:
        >>> clock(75), clock(3725), clock(None)
        ('1:15', '1:02:05', '?')
    """
    if seconds is None:
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class SendProgress:
    """Sends every report to the process that started the run; one that can't be sent is left out."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __call__(self, report: StepReport) -> None:
        """Send a report, without waiting."""
        # A new socket each time: it costs microseconds, and there is nothing to close or to carry to other processes.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            # Refused where nobody listens any more, is too slow, or is on another machine.
            sender.sendto(json.dumps(asdict(report)).encode(), self._address)


@contextmanager
def receive(progress: Progress) -> Iterator[SendProgress]:
    """Give what workers send their reports with; `progress` is called with each, in a thread of its own."""
    folder = Path(tempfile.mkdtemp(prefix="boxwright-progress-"))
    address = str(folder / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        thread = threading.Thread(target=_listen, args=(listener, progress), name="boxwright-progress", daemon=True)
        thread.start()
        try:
            yield SendProgress(address)
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
                end.sendto(b"", address)
            thread.join()
            shutil.rmtree(folder, ignore_errors=True)


def _listen(listener: socket.socket, progress: Progress) -> None:
    while data := listener.recv(_LARGEST):
        progress(StepReport(**json.loads(data)))
