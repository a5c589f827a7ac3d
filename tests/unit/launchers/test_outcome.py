import signal
from pathlib import Path

import pytest

from boxwright.core.errors import CheckpointError, UsageError
from boxwright.launchers.base import Kind, WorkerFailed
from boxwright.launchers.outcome import (
    Outcome,
    describe_failure,
    describe_result,
    make_error,
    read_outcome,
    read_result,
    write_outcome,
)

GLOO = "[/build/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:10144."


def fail(error: Exception) -> WorkerFailed:
    """Describe an error as a worker does, and make a launcher's error of it."""
    try:
        raise error
    except type(error) as caught:
        return make_error(1, 1, describe_failure(caught))


def named(name: str, module: str, base: type[Exception]) -> type[Exception]:
    return type(name, (base,), {"__module__": module})


def test_a_result_comes_back(tmp_path: Path):
    write_outcome(tmp_path / "outcome", describe_result({"ap": 0.5}))

    outcome = read_outcome(tmp_path / "outcome")
    assert outcome is not None
    assert outcome.ok
    assert read_result(outcome) == {"ap": 0.5}


def test_a_failure_comes_back(tmp_path: Path):
    write_outcome(tmp_path / "outcome", describe_failure(KeyError("missing")))

    outcome = read_outcome(tmp_path / "outcome")
    assert outcome is not None
    assert (outcome.ok, outcome.sentence) == (False, "KeyError: 'missing'")


def test_a_worker_that_died_before_it_had_written_all_has_no_outcome(tmp_path: Path):
    file = tmp_path / "outcome"
    assert read_outcome(file) is None
    write_outcome(file, describe_result(bytes(1000)))
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        assert read_outcome(file) is None


def test_a_result_that_cannot_be_read_is_an_error_with_advice():
    with pytest.raises(WorkerFailed, match=r"UnpicklingError.*Return plain values"):
        read_result(Outcome(ok=True, time_s=0.0, payload=b"torn"))


def test_an_exception_comes_back_with_its_traceback_and_itself():
    error = fail(KeyError("missing"))

    assert str(error).startswith("Worker 1 failed: KeyError: 'missing'\n\nTraceback (most recent call last):")
    assert (error.kind, error.rank, error.exit_code, error.status) == ("exception", 1, 1, 1)
    assert repr(error.__cause__) == "KeyError('missing')"


@pytest.mark.parametrize(("error", "code"), [(UsageError("No."), 2), (CheckpointError("No."), 4)])
def test_our_own_errors_stay_one_sentence(error: Exception, code: int):
    failed = fail(error)

    assert str(failed) == f"Worker 1 failed: {type(error).__name__}: No."
    assert failed.exit_code == code


NETWORK_ERROR = named("DistNetworkError", "torch.distributed", named("DistError", "torch.distributed", RuntimeError))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError(GLOO), "communication"),
        (NETWORK_ERROR("timed out"), "communication"),
        (RuntimeError("The backend gloo can't do that"), "exception"),
        (ConnectionResetError("the tracking server"), "exception"),
        (ValueError(GLOO), "exception"),
    ],
)
def test_errors_of_talking_to_the_others_are_told_from_the_jobs_own(error: Exception, kind: Kind):
    assert fail(error).kind == kind


def test_a_communication_error_that_was_wrapped_is_still_known():
    wrapped = ValueError("training stopped")
    wrapped.__cause__ = RuntimeError(GLOO)

    assert fail(wrapped).kind == "communication"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-signal.SIGKILL, "Worker 2 was killed by signal 9 (SIGKILL) .* ran out of memory"),
        (-signal.SIGBUS, "Worker 2 was killed by signal 7 (SIGBUS) .* /dev/shm"),
        (-signal.SIGUSR1, "Worker 2 was killed by signal 10 (SIGUSR1) .* Another process"),
        (-40, "Worker 2 was killed by signal 40 (unknown) .* Another process"),
        (3, "Worker 2 ended with exit status 3 .* os._exit"),
        (0, "Worker 2 ended with exit status 0 .* os._exit"),
    ],
)
def test_a_death_is_described(status: int, words: str):
    error = make_error(2, status, None)

    assert all(part in str(error) for part in words.split(" .* "))
    assert (error.kind, error.rank, error.status, error.__cause__) == ("death", 2, status, None)
