"""Which launcher starts the Estimator's workers."""

from boxwright.accel.estimator.checks import check_count
from boxwright.accel.strategy import make_launcher
from boxwright.core.errors import UsageError
from boxwright.launchers.base import Launcher
from boxwright.launchers.placement import ELSEWHERE

_MAX_RESTARTS = 2


def choose_launcher(backend: str | Launcher, workers: int, num_nodes: int, max_restarts: int | None) -> str | Launcher:
    """Return what starts the workers, and starts them again.

    Raises:
        UsageError: the settings contradict each other.
    """
    if not isinstance(backend, str) and (isinstance(backend, type) or not hasattr(backend, "run")):
        raise UsageError(
            f"backend={backend!r} is no launcher. Give the name of one: subprocess, spawn, ray or spark; or an object, "
            "such as RayLauncher(cores_per_worker=4)."
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
            raise UsageError(
                f"max_restarts={max_restarts!r} and a launcher with settings of its own: give it restart=Restart(…)."
            )
        return backend
    if workers == 1 and name not in ELSEWHERE:
        if max_restarts is not None:
            raise UsageError(
                f"max_restarts={max_restarts!r}: one worker is this very process, which can't start itself again. "
                "Leave it out, or use workers_per_node=2 or more."
            )
        return backend
    return make_launcher(backend, max_restarts=_MAX_RESTARTS if max_restarts is None else max_restarts)
