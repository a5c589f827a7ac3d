"""When the whole group of workers is started again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger
from boxwright.launchers.base import WorkerFailed

T = TypeVar("T")

_PORT_TRIES = 3
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """How often all workers are started again after one died or lost the others; a job's own exception ends it all.

    The job must find its way back by itself, from its last checkpoint: BOXWRIGHT_ATTEMPT counts the starts from 0.

    Attributes:
        max_restarts: how many times.

    Example:
        >>> Restart(max_restarts=2).run(lambda attempt: f"attempt {attempt}")
        'attempt 0'
    """

    max_restarts: int = 0

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise UsageError(f"max_restarts={self.max_restarts!r} is not possible. Use 0 or more.")

    def notes(self) -> list[str]:
        """Return the sentence about restarts for a plan; none where there are none."""
        if not self.max_restarts:
            return []
        return [f"after a death all processes start again, {self.max_restarts} times at most"]

    def run(self, attempt: Callable[[int], T]) -> T:
        """Call `attempt` with 0, 1, … until it returns, and return what it returned.

        Raises:
            WorkerFailed: it failed in a way that is not tried again, or too often.
        """
        number = restarts = moves = 0
        while True:
            try:
                return attempt(number)
            except WorkerFailed as error:
                first_line = str(error).partition("\n")[0]
                if _port_was_taken(error) and moves < _PORT_TRIES:
                    moves += 1
                    _log.info("%s Another port is tried.", first_line)
                elif error.kind != "exception" and restarts < self.max_restarts:
                    restarts += 1
                    _log.warning("%s All workers start again (%d of %d).", first_line, restarts, self.max_restarts)
                else:
                    raise
            number += 1


def _port_was_taken(error: WorkerFailed) -> bool:
    # Between our look for a free port and the first worker's use of it another program was quicker.
    return error.kind == "communication" and "EADDRINUSE" in str(error)
