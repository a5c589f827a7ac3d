"""What a worker reports about its job before it ends, and the error that its launcher raises for it."""

import pickle
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boxwright.core.errors import BoxwrightError
from boxwright.core.exit_status import describe_exit
from boxwright.launchers.base import Kind, WorkerFailed
from boxwright.launchers.payload import pack, unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a worker's job ended.

    Attributes:
        ok: whether the job returned.
        time_s: when, on the clock that all processes of a machine share.
        payload: the packed result of the first worker, or the packed exception; empty if there is none to send.
        kind: how it failed.
        sentence: the error as one line, such as "ValueError: no".
        trace: the whole traceback.
        expected: whether it is a `BoxwrightError`, whose message is written for the user.
        exit_code: the command line's exit code.
    """

    ok: bool
    time_s: float
    payload: bytes = b""
    kind: Kind = "exception"
    sentence: str = ""
    trace: str = ""
    expected: bool = False
    exit_code: int = 0


def describe_result(value: object, *, main_by_name: bool = False) -> Outcome:
    """Return the outcome of a job that returned `value`.

    Raises:
        UsageError: the value can't be pickled.
    """
    payload = pack(value, "The job's result", main_by_name=main_by_name)
    return Outcome(ok=True, time_s=time.monotonic(), payload=payload)


def describe_failure(error: BaseException, *, main_by_name: bool = False) -> Outcome:
    """Return the outcome of a job that raised: its traceback, and the exception itself if it can be pickled."""
    try:
        payload = pack(error, "The exception", main_by_name=main_by_name)
        unpack(payload)
    except Exception:  # noqa: BLE001  a class may refuse in any way; the traceback still describes the error
        payload = b""
    return Outcome(
        ok=False,
        time_s=time.monotonic(),
        payload=payload,
        kind="communication" if _is_communication_error(error) else "exception",
        sentence=f"{type(error).__name__}: {error}",
        trace="".join(traceback.format_exception(error)).strip(),
        expected=isinstance(error, BoxwrightError),
        exit_code=error.exit_code if isinstance(error, BoxwrightError) else 1,
    )


def write_outcome(file: Path, outcome: Outcome) -> None:
    """Write an outcome for the process that started this worker, which reads it when the worker has ended."""
    with file.open("wb") as stream:
        pickle.dump(outcome, stream, protocol=pickle.HIGHEST_PROTOCOL)


def read_outcome(file: Path) -> Outcome | None:
    """Return what a worker wrote; None if it died before it had written all of it."""
    try:
        outcome: Outcome = pickle.loads(file.read_bytes())
    except (FileNotFoundError, EOFError, pickle.UnpicklingError):
        return None
    return outcome


def read_result(outcome: Outcome) -> Any:
    """Return the result of a job that returned.

    Raises:
        WorkerFailed: it can't be unpickled here.
    """
    try:
        return unpack(outcome.payload)
    except Exception as error:
        raise WorkerFailed(
            f"The job's result can't be unpickled here: {type(error).__name__}: {error}. "
            "Return plain values, arrays or a path instead."
        ) from error


def make_error(rank: int, status: int | None, outcome: Outcome | None) -> WorkerFailed:
    """Return the error for a worker that failed, with the job's own exception as its cause."""
    if outcome is None:
        how, why = describe_exit(status)
        text = f"Worker {rank} {how} before its job was done. {why}."
        return WorkerFailed(text, rank=rank, kind="death", status=status)
    verb = "lost the others" if outcome.kind == "communication" else "failed"
    text = outcome.sentence if outcome.expected else f"{outcome.sentence}\n\n{outcome.trace}"
    error = WorkerFailed(
        f"Worker {rank} {verb}: {text}", rank=rank, kind=outcome.kind, exit_code=outcome.exit_code, status=status
    )
    if outcome.expected:  # the sentence is for users, the traceback for --debug
        error.add_note(f"In worker {rank}:\n{outcome.trace}")
    error.__cause__ = _unpack_cause(outcome)
    return error


def _unpack_cause(outcome: Outcome) -> BaseException | None:
    try:
        cause = unpack(outcome.payload) if outcome.payload else None
    except Exception:  # noqa: BLE001  the worker may have imported what can't be imported here
        return None
    return cause if isinstance(cause, BaseException) else None


def _is_communication_error(error: BaseException | None) -> bool:
    """Return whether an error comes from talking to other workers, or was raised from one that does."""
    if error is None:
        return False
    # torch is not imported here. Its own errors have a base class; gloo raises RuntimeError and names one of its files.
    from_torch = any((c.__module__, c.__name__) == ("torch.distributed", "DistError") for c in type(error).__mro__)
    from_gloo = isinstance(error, RuntimeError) and "/gloo/" in str(error)
    return from_torch or from_gloo or _is_communication_error(error.__cause__)
