"""How the Estimator starts its workers: by which launcher, and with the caller's log levels."""

import logging
import sys
from collections.abc import Callable, Mapping
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


def read_levels() -> dict[str, tuple[int, bool]]:
    """Return the levels of this program's loggers, and whether they have a handler; "" is the root."""
    known: dict[str, Any] = {"": logging.getLogger(), **logging.Logger.manager.loggerDict}
    loggers = {name: one for name, one in known.items() if isinstance(one, logging.Logger)}
    return {name: (one.level, bool(one.handlers)) for name, one in loggers.items() if one.level or one.handlers}


def run_with_levels(
    nano: TorchNano, levels: Mapping[str, tuple[int, bool]], function: Callable[..., T], *args: Any
) -> T:
    """Run one of the estimator's jobs in a worker, with the caller's log levels if it is another process.

    A new interpreter does not know them. A logger that has a handler there writes to stderr here, which the caller
    sees.
    """
    if nano.plan.strategy != "none" and not nano.is_external:
        for name, (level, shown) in levels.items():
            logger = logging.getLogger(name)
            if level != logging.NOTSET:
                logger.setLevel(level)
            if shown and not logger.handlers:
                handler = logging.StreamHandler(sys.stderr)
                handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
                logger.addHandler(handler)
    return function(nano, *args)
