import signal
from pathlib import Path

import pytest

from boxwright.core.errors import CheckpointError, UsageError
from boxwright.launchers.base import Kind, WorkerFailed
from boxwright.launchers.outcome import make_error, read_outcome, read_result, write_failure, write_result

GLOO = "[/build/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:10144."


def fail(folder: Path, error: Exception, rank: int = 1) -> WorkerFailed:
    """Write an error as a worker does, and read it as a launcher does."""
    try:
        raise error
    except type(error) as caught:
        write_failure(folder, rank, caught, main_by_name=False)
    return make_error(folder, rank, 1)


def named(name: str, module: str, base: type[Exception]) -> type[Exception]:
    return type(name, (base,), {"__module__": module})


def test_a_result_comes_back(tmp_path: Path):
    write_result(tmp_path, 0, {"ap": 0.5}, main_by_name=False)

    outcome = read_outcome(tmp_path, 0)
    assert outcome is not None
    assert outcome.ok
    assert read_result(tmp_path) == {"ap": 0.5}


def test_results_of_other_workers_are_not_kept(tmp_path: Path):
    write_result(tmp_path, 1, (print for _ in ()), main_by_name=False)  # a generator can't be pickled

    assert {file.name for file in tmp_path.iterdir()} == {"1.json"}


def test_a_worker_that_wrote_nothing_has_no_outcome(tmp_path: Path):
    assert read_outcome(tmp_path, 0) is None


def test_a_result_that_cannot_be_read_is_an_error_with_advice(tmp_path: Path):
    (tmp_path / "value").write_bytes(b"torn")

    with pytest.raises(WorkerFailed, match="The job's result can't be unpickled here: UnpicklingError"):
        read_result(tmp_path)


def test_an_exception_comes_back_with_its_traceback_and_itself(tmp_path: Path):
    error = fail(tmp_path, KeyError("missing"))

    assert str(error).startswith("Worker 1 failed: KeyError: 'missing'\n\nTraceback (most recent call last):")
    assert (error.kind, error.rank, error.exit_code, error.status) == ("exception", 1, 1, 1)
    assert repr(error.__cause__) == "KeyError('missing')"


@pytest.mark.parametrize(("error", "code"), [(UsageError("No."), 2), (CheckpointError("No."), 4)])
def test_our_own_errors_stay_one_sentence(tmp_path: Path, error: Exception, code: int):
    failed = fail(tmp_path, error)

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
def test_errors_of_talking_to_the_others_are_told_from_the_jobs_own(tmp_path: Path, error: Exception, kind: Kind):
    assert fail(tmp_path, error).kind == kind


def test_a_communication_error_that_was_wrapped_is_still_known(tmp_path: Path):
    wrapped = ValueError("training stopped")
    wrapped.__cause__ = RuntimeError(GLOO)

    assert fail(tmp_path, wrapped).kind == "communication"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-signal.SIGKILL, "Worker 2 was killed by signal 9 (SIGKILL). Most often the machine or its container ran out"),
        (-signal.SIGBUS, "Worker 2 was killed by signal 7 (SIGBUS). Most often shared memory"),
        (-signal.SIGUSR1, "Worker 2 was killed by signal 10 (SIGUSR1). Something outside stopped it."),
        (-40, "Worker 2 was killed by signal 40 (unknown). Something outside stopped it."),
        (3, "Worker 2 ended with exit status 3 before its job was done."),
        (0, "Worker 2 ended with exit status 0 before its job was done."),
    ],
)
def test_a_death_is_described(tmp_path: Path, status: int, words: str):
    error = make_error(tmp_path, 2, status)

    assert str(error).startswith(words)
    assert (error.kind, error.rank, error.status, error.__cause__) == ("death", 2, status, None)
