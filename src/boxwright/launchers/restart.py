"""Restarts all workers after one has died or lost the others."""

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
    """How often to restart all workers after one has died or lost the others; a job's own exception ends the run.

    The job itself must resume, from its last checkpoint: BOXWRIGHT_ATTEMPT counts the starts from 0.

    Attributes:
        max_restarts: at most this often.

    Example:
        >>> Restart(max_restarts=2).run(lambda attempt: f"attempt {attempt}")
        'attempt 0'
    """

    max_restarts: int = 0

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise UsageError(f"max_restarts={self.max_restarts!r} is not possible. Use 0 or more.")

    def notes(self) -> list[str]:
        """Return the sentence about restarts for a plan; none without restarts."""
        times = "once" if self.max_restarts == 1 else f"up to {self.max_restarts} times"
        return [f"if a process dies, all are restarted, {times}"] if self.max_restarts else []

    def run(self, attempt: Callable[[int], T]) -> T:
        """Call `attempt` with 0, 1, … until it returns, and return its result.

        Raises:
            WorkerFailed: the job raised, or there are no restarts left.
        """
        number = restarts = moves = 0
        while True:
            try:
                return attempt(number)
            except WorkerFailed as error:
                first_line = str(error).partition("\n")[0]
                # Another program took the port between our check and the first worker's use of it.
                port_was_taken = error.kind == "communication" and "EADDRINUSE" in str(error)
                if port_was_taken and moves < _PORT_TRIES:
                    moves += 1
                    _log.info("%s Trying another port.", first_line)
                elif error.kind != "exception" and restarts < self.max_restarts:
                    restarts += 1
                    _log.warning("%s Restarting all workers (%d of %d).", first_line, restarts, self.max_restarts)
                else:
                    raise
            number += 1
