import logging

import pytest

from boxwright.core.errors import UsageError
from boxwright.launchers.base import Kind, WorkerFailed
from boxwright.launchers.restart import Restart

TAKEN = "Worker 0 lost the others: code: -98, name: EADDRINUSE"


class Attempts:
    """Fails `failures` times, then returns."""

    def __init__(self, failures: int, kind: Kind, message: str = "Worker 1 went.") -> None:
        self.failures, self.kind, self.message = failures, kind, message
        self.numbers: list[int] = []

    def __call__(self, number: int) -> str:
        self.numbers.append(number)
        if len(self.numbers) <= self.failures:
            raise WorkerFailed(self.message, kind=self.kind)
        return "done"


@pytest.mark.parametrize("kind", ["death", "communication"])
def test_workers_are_restarted_as_often_as_allowed(kind: Kind, caplog: pytest.LogCaptureFixture):
    attempts = Attempts(2, kind)
    with caplog.at_level(logging.WARNING, logger="boxwright"):
        assert Restart(max_restarts=2).run(attempts) == "done"
    assert attempts.numbers == [0, 1, 2]
    assert [message.partition("workers ")[2] for message in caplog.messages] == ["(1 of 2).", "(2 of 2)."]

    with pytest.raises(WorkerFailed):
        Restart(max_restarts=1).run(Attempts(2, kind))


def test_by_default_nothing_is_restarted():
    attempts = Attempts(1, "death")

    with pytest.raises(WorkerFailed):
        Restart().run(attempts)

    assert attempts.numbers == [0]


def test_a_jobs_own_exception_is_never_restarted():
    attempts = Attempts(1, "exception", TAKEN)

    with pytest.raises(WorkerFailed):
        Restart(max_restarts=5).run(attempts)

    assert attempts.numbers == [0]


def test_a_taken_port_does_not_count_as_a_restart_but_has_its_own_limit():
    attempts = Attempts(2, "communication", TAKEN)
    assert Restart().run(attempts) == "done"

    forever = Attempts(99, "communication", TAKEN)
    with pytest.raises(WorkerFailed):
        Restart().run(forever)
    assert len(forever.numbers) == 4


def test_a_negative_number_is_refused():
    with pytest.raises(UsageError, match="max_restarts=-1"):
        Restart(max_restarts=-1)
