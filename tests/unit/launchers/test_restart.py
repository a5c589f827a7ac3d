import logging

import pytest

from boxwright.core.errors import UsageError
from boxwright.launchers.base import Kind, WorkerFailed
from boxwright.launchers.restart import Restart

TAKEN = "Worker 0 lost the others: code: -98, name: EADDRINUSE"


class Attempts:
    """Fails so many times, then returns."""

    def __init__(self, failures: int, kind: Kind, message: str = "Worker 1 went.") -> None:
        self.failures, self.kind, self.message = failures, kind, message
        self.numbers: list[int] = []

    def __call__(self, number: int) -> str:
        self.numbers.append(number)
        if len(self.numbers) <= self.failures:
            raise WorkerFailed(self.message, kind=self.kind)
        return "done"


@pytest.mark.parametrize("kind", ["death", "communication"])
def test_a_lost_worker_is_replaced_as_often_as_allowed(kind: Kind, caplog: pytest.LogCaptureFixture):
    attempts = Attempts(2, kind)
    with caplog.at_level(logging.WARNING, logger="boxwright"):
        assert Restart(max_restarts=2).run(attempts) == "done"
    assert attempts.numbers == [0, 1, 2]
    assert caplog.messages == [f"Worker 1 went. All workers start again ({n} of 2)." for n in (1, 2)]

    with pytest.raises(WorkerFailed):
        Restart(max_restarts=1).run(Attempts(2, kind))


def test_without_leave_nothing_is_tried_again():
    attempts = Attempts(1, "death")

    with pytest.raises(WorkerFailed):
        Restart().run(attempts)

    assert attempts.numbers == [0]


def test_the_jobs_own_exception_is_never_tried_again():
    attempts = Attempts(1, "exception", TAKEN)

    with pytest.raises(WorkerFailed):
        Restart(max_restarts=5).run(attempts)

    assert attempts.numbers == [0]


def test_a_port_that_was_taken_is_no_restart_but_has_its_own_limit():
    attempts = Attempts(2, "communication", TAKEN)
    assert Restart().run(attempts) == "done"

    for_ever = Attempts(99, "communication", TAKEN)
    with pytest.raises(WorkerFailed):
        Restart().run(for_ever)
    assert len(for_ever.numbers) == 4


def test_a_negative_number_is_refused():
    with pytest.raises(UsageError, match="max_restarts=-1 is not possible"):
        Restart(max_restarts=-1)
