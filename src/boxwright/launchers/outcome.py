"""How a worker's job ended: written by the worker, read by whoever started it."""

import json
import signal
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from boxwright.core.errors import BoxwrightError
from boxwright.launchers.base import Kind, WorkerFailed
from boxwright.launchers.folder import write_atomically
from boxwright.launchers.payload import pack, unpack

_HINTS: dict[int, str] = {
    signal.SIGKILL: "Most often the machine or its container ran out of memory: use a smaller batch or fewer processes",
    signal.SIGSEGV: "A native library crashed; its stack is in the worker's output",
    signal.SIGABRT: "A native library gave up; its reason is in the worker's output",
    signal.SIGBUS: "Most often shared memory or a disk is full: look at /dev/shm",
    signal.SIGILL: "A native library uses instructions that this cpu does not have",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a worker wrote before it ended.

    Attributes:
        ok: whether the job returned.
        time_s: when, on the clock that all processes of a machine share.
        kind: how it failed.
        sentence: the error as one line, such as "ValueError: no".
        trace: the whole traceback.
        expected: whether it is a `BoxwrightError`, whose message is meant for the user.
        exit_code: what the command line ends with.
    """

    ok: bool
    time_s: float
    kind: Kind = "exception"
    sentence: str = ""
    trace: str = ""
    expected: bool = False
    exit_code: int = 0


def write_result(folder: Path, rank: int, value: object, *, main_by_name: bool) -> None:
    """Write that the job returned; of the first worker also what.

    Raises:
        UsageError: the value can't be pickled.
    """
    if rank == 0:
        write_atomically(folder / "value", pack(value, "The job's result", main_by_name=main_by_name))
    _write(folder, rank, Outcome(ok=True, time_s=time.monotonic()))


def write_failure(folder: Path, rank: int, error: BaseException, *, main_by_name: bool) -> None:
    """Write what the job raised: its traceback, and the exception itself where it can be pickled."""
    expected = isinstance(error, BoxwrightError)
    outcome = Outcome(
        ok=False,
        time_s=time.monotonic(),
        kind="communication" if _lost_the_others(error) else "exception",
        sentence=f"{type(error).__name__}: {error}",
        trace="".join(traceback.format_exception(error)).strip(),
        expected=expected,
        exit_code=error.exit_code if isinstance(error, BoxwrightError) else 1,
    )
    try:
        data = pack(error, "The exception", main_by_name=main_by_name)
        unpack(data)
    except Exception:  # noqa: BLE001  any class may refuse in any way; the traceback is there in words
        data = b""
    write_atomically(folder / f"{rank}.cause", data)
    _write(folder, rank, outcome)


def read_outcome(folder: Path, rank: int) -> Outcome | None:
    """Return what a worker wrote; None if it has not, or died before it could."""
    try:
        return Outcome(**json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def read_result(folder: Path) -> Any:
    """Return the first worker's result.

    Raises:
        WorkerFailed: it can't be unpickled here.
    """
    try:
        return unpack((folder / "value").read_bytes())
    except Exception as error:
        raise WorkerFailed(
            f"The job's result can't be unpickled here: {type(error).__name__}: {error}. "
            "Return plain values, arrays or a path instead."
        ) from error


def make_error(folder: Path, rank: int, status: int | None) -> WorkerFailed:
    """Return the error of a worker that failed, its original exception as the cause."""
    outcome = read_outcome(folder, rank)
    if outcome is None:
        return WorkerFailed(_describe_death(rank, status), rank=rank, kind="death", status=status)
    lost = "lost the others" if outcome.kind == "communication" else "failed"
    text = outcome.sentence if outcome.expected else f"{outcome.sentence}\n\n{outcome.trace}"
    error = WorkerFailed(
        f"Worker {rank} {lost}: {text}", rank=rank, kind=outcome.kind, exit_code=outcome.exit_code, status=status
    )
    if outcome.expected:  # the sentence is for the user, the rest for who asks for tracebacks
        error.add_note(f"In worker {rank}:\n{outcome.trace}")
    error.__cause__ = _read_cause(folder, rank)
    return error


def _write(folder: Path, rank: int, outcome: Outcome) -> None:
    write_atomically(folder / f"{rank}.json", json.dumps(asdict(outcome)).encode())


def _read_cause(folder: Path, rank: int) -> BaseException | None:
    data = (folder / f"{rank}.cause").read_bytes()
    try:
        cause = unpack(data) if data else None
    except Exception:  # noqa: BLE001  the worker may have imported what can't be imported here
        return None
    return cause if isinstance(cause, BaseException) else None


def _lost_the_others(error: BaseException | None) -> bool:
    """Return whether an error comes from talking to other workers, or was raised from one that does."""
    if error is None:
        return False
    # torch is not imported here. Its own errors have a base class; those of gloo are bare and name a file of gloo's.
    torch_said = any((c.__module__, c.__name__) == ("torch.distributed", "DistError") for c in type(error).__mro__)
    gloo_said = isinstance(error, RuntimeError) and "/gloo/" in str(error)
    return torch_said or gloo_said or _lost_the_others(error.__cause__)


def _describe_death(rank: int, status: int | None) -> str:
    if status is None or status >= 0:
        return (
            f"Worker {rank} ended with exit status {status} before its job was done. "
            "Its output says why, unless something called os._exit."
        )
    number = -status
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "unknown"
    hint = _HINTS.get(number, "Something outside stopped it")
    return f"Worker {rank} was killed by signal {number} ({name}). {hint}."
