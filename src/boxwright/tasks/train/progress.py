"""The progress of a run, reported after every step, also from a worker to the starting process, and its result."""

import json
import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from boxwright.core.errors import WorkerError

_LARGEST = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The progress of a run.

    Attributes:
        step: steps done.
        total: steps of the whole run.
        epoch: epochs done, with a fraction.
        images_per_s: of whole training, data included.
        left_s: seconds to the end at that speed; None while it is not known.
        lr: the step's learning rate.
        memory_mb: peak memory of the first process.
        processes: their number.
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
    """Return a duration as text.

    Example:
        >>> clock(75), clock(3725), clock(None)
        ('1:15', '1:02:05', '?')
    """
    if seconds is None:
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def send_progress(address: str, report: StepReport) -> None:
    """Send a report to the process that started the run, without waiting; one that can't be sent is dropped.

    Raises:
        WorkerError: the listener has failed.
    """
    # A new socket each time costs microseconds, and leaves nothing to close or to pickle.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        try:
            sender.sendto(json.dumps(asdict(report)).encode(), address)
        except ConnectionRefusedError as error:
            raise WorkerError("The progress callback of the starting process has failed.") from error
        except OSError:
            pass  # the listener is too slow, on another machine, or gone


@contextmanager
def receive(progress: Progress) -> Iterator[Progress]:
    """Yield a sender for workers; a thread calls `progress` with each of their reports.

    If `progress` raises, the sender fails from then on, and so does this block, with the same error.
    """
    with (
        tempfile.TemporaryDirectory(prefix="boxwright-progress-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(1, thread_name_prefix="boxwright-progress") as pool,
    ):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        address = f"{folder}/socket"
        listener.bind(address)
        listening = pool.submit(_listen, listener, progress)
        try:
            yield partial(send_progress, address)
        finally:
            # Reports that wait are still read, then `recv` returns nothing. The socket's file may be gone by now: the
            # system clears old temporary files.
            with suppress(OSError):  # closed if the callback has failed
                listener.shutdown(socket.SHUT_RD)
            listening.result()


def _listen(listener: socket.socket, progress: Progress) -> None:
    with listener:  # closed after a failure, so that later reports are refused
        while data := listener.recv(_LARGEST):
            progress(StepReport(**json.loads(data)))


RESULT = "result.json"
"""The file of a run's folder with `TrainResult.to_dict`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What a training run returns.

    Attributes:
        checkpoint: the best weights, or the last ones if nothing was scored.
        best: metrics of the best evaluation; empty if there was none.
        last: metrics of the last one.
        steps: how many steps the run has done.
        images_per_s: of whole training, data included, evaluation not.
        stopped: why it ended early: "", "patience", or "signal" and its number.
        final_loss: the last step's; None if no step was left to do.
        peak_mb: peak memory of the first process.
    """

    checkpoint: Path
    best: dict[str, float]
    last: dict[str, float]
    steps: int
    images_per_s: float
    stopped: str
    final_loss: float | None
    peak_mb: float

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        return {
            **asdict(self),
            "checkpoint": str(self.checkpoint),
            "images_per_s": round(self.images_per_s, 2),
            "final_loss": None if self.final_loss is None else round(self.final_loss, 4),
            "peak_mb": round(self.peak_mb),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainResult":
        """Return the result that `to_dict` described."""
        return cls(**{**values, "checkpoint": Path(values["checkpoint"])})
