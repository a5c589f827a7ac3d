"""How the Estimator starts its workers: by which launcher, and with the caller's log levels."""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from boxwright.accel.estimator.intake import check_count
from boxwright.accel.nano import TorchNano
from boxwright.accel.strategy import make_launcher
from boxwright.core.errors import UsageError
from boxwright.launchers.base import Launcher
from boxwright.launchers.placement import ELSEWHERE

_MAX_RESTARTS = 2
T = TypeVar("T")


def choose_launcher(backend: str | Launcher, workers: int, num_nodes: int, max_restarts: int | None) -> str | Launcher:
    """Return what starts the workers and restarts them."""
    if not isinstance(backend, str) and (isinstance(backend, type) or not hasattr(backend, "run")):
        raise UsageError(
            f"backend={backend!r} is not a launcher. Give the name of one: subprocess, spawn, ray or spark; or an "
            "object such as RayLauncher(cores_per_worker=4)."
        )
    if max_restarts is not None:
        max_restarts = check_count("max_restarts", max_restarts, least=0)
    name = backend if isinstance(backend, str) else backend.name
    if num_nodes > 1 and name not in ELSEWHERE:
        raise UsageError(
            f"num_nodes={num_nodes!r} is not possible with backend={name!r}, which starts its workers on this machine. "
            f"Use num_nodes=1, or one of: {', '.join(ELSEWHERE)}."
        )
    if not isinstance(backend, str):
        if max_restarts is not None:
            raise UsageError(f"max_restarts={max_restarts!r} and a configured launcher: give it restart=Restart(…).")
        return backend
    if workers == 1 and name not in ELSEWHERE:
        if max_restarts is not None:
            raise UsageError(
                f"max_restarts={max_restarts!r}: one worker runs in this process, which can't restart itself. "
                "Leave it out, or use workers_per_node=2 or more."
            )
        return backend
    return make_launcher(backend, max_restarts=_MAX_RESTARTS if max_restarts is None else max_restarts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The levels of the caller's loggers, for workers: a new interpreter does not know them.

    Attributes:
        levels: by the logger's name; "" is the root.
        shown: names of the loggers that have a handler.
    """

    levels: dict[str, int]
    shown: tuple[str, ...]

    @classmethod
    def read(cls) -> "Levels":
        """Return the levels of this program."""
        known: dict[str, Any] = {"": logging.getLogger(), **logging.Logger.manager.loggerDict}
        loggers = {name: one for name, one in known.items() if isinstance(one, logging.Logger)}
        return cls(
            levels={name: one.level for name, one in loggers.items() if one.level != logging.NOTSET},
            shown=tuple(name for name, one in loggers.items() if one.handlers),
        )

    def apply(self) -> None:
        """Set the same levels here; a logger with a handler there writes to stderr, which the caller sees."""
        for name, level in self.levels.items():
            logging.getLogger(name).setLevel(level)
        for name in self.shown:
            logger = logging.getLogger(name)
            if not logger.handlers:
                handler = logging.StreamHandler(sys.stderr)
                handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
                logger.addHandler(handler)


def run_with_levels(nano: TorchNano, levels: Levels, function: Callable[[TorchNano, Any], T], job: Any) -> T:
    """Run one of the estimator's jobs in a worker, with the caller's log levels if it is another process."""
    if nano.plan.strategy != "none" and not nano.is_external:
        levels.apply()
    return function(nano, job)
