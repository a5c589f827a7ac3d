"""The caller's log levels in every worker, so that a logger of the user's own says there what it says here.

A worker is a fresh interpreter: what was set up in the calling program is unknown to it. Its lines go to its stderr
and reach the caller with the worker's rank before them, whatever the program has done to `sys.stdout`.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from boxwright.accel.nano import TorchNano

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Which loggers were set to which level, and whether anything is shown at all.

    Attributes:
        levels: by the logger's name; "" is the root.
        shown: names of the loggers that have a handler.
    """

    levels: dict[str, int]
    shown: tuple[str, ...]

    @classmethod
    def read(cls) -> "Levels":
        """Return what this program has set."""
        known: dict[str, Any] = {"": logging.getLogger(), **logging.Logger.manager.loggerDict}
        loggers = {name: one for name, one in known.items() if isinstance(one, logging.Logger)}
        return cls(
            levels={name: one.level for name, one in loggers.items() if one.level != logging.NOTSET},
            shown=tuple(name for name, one in loggers.items() if one.handlers),
        )

    def apply(self) -> None:
        """Set the same here; a logger that showed its lines there shows them on stderr."""
        for name, level in self.levels.items():
            logging.getLogger(name).setLevel(level)
        for name in self.shown:
            logger = logging.getLogger(name)
            if not logger.handlers:
                handler = logging.StreamHandler(sys.stderr)
                handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
                logger.addHandler(handler)


def run_with_levels(nano: TorchNano, levels: Levels, function: Callable[[TorchNano, Any], T], job: Any) -> T:
    """Run one of the estimator's jobs in a worker, with the caller's log levels where it is another process."""
    if nano.plan.strategy != "none" and not nano.is_external:
        levels.apply()
    return function(nano, job)
