"""Makes the launcher that a run's settings describe."""

from pathlib import Path
from typing import Any

from boxwright.core import catalogue
from boxwright.core.errors import UsageError
from boxwright.launchers.base import Launcher
from boxwright.launchers.placement import ELSEWHERE
from boxwright.launchers.restart import Restart
from boxwright.launchers.supervisor import Patience

# The strategies that have a setting, and what to use with the others.
_ONLY_FOR = {
    "address": (("ray",), "It is the address of a Ray cluster"),
    "master": (("spark",), "It is the URL of a Spark master"),
    "min_workers": (ELSEWHERE, "One machine has the cores or not: use num_processes"),
    "cores_per_worker": (ELSEWHERE, "On one machine use cpu_for_each_process"),
    "spread": (("ray",), "It distributes processes over the machines of a Ray cluster"),
    "files": (ELSEWHERE, "On one machine every process reads them where they are"),
}


def make_launcher(
    strategy: str | None = None,
    *,
    max_restarts: int = 0,
    patience: Patience | None = None,
    address: str | None = None,
    master: str | None = None,
    min_workers: int | None = None,
    cores_per_worker: int | None = None,
    spread: str | None = None,
    files: tuple[Path, ...] | None = None,
) -> Launcher:
    """Return the launcher that settings describe; None means its own default.

    Args:
        strategy: a launcher's name; None for "subprocess".
        max_restarts: how often to restart all processes after one has died.
        patience: how long processes may take to end when they are stopped.
        address: of a Ray cluster.
        master: the URL of a Spark master.
        min_workers: how few processes an engine may run with when it has no room for all.
        cores_per_worker: an engine's cpus for each process.
        spread: how Ray distributes the processes over its machines; see `RayLauncher`.
        files: sent to an engine's machines.

    Raises:
        UsageError: a setting does not belong to the strategy, or is not possible.
        MissingDependencyError: the strategy's package is not installed.

    Example:
        >>> make_launcher("subprocess", max_restarts=2).notes(4)
        ['if a process dies, all are restarted, up to 2 times']
    """
    strategy = strategy or "subprocess"
    settings = {
        "address": address, "master": master, "min_workers": min_workers, "cores_per_worker": cores_per_worker,
        "spread": spread, "files": files,
    }  # fmt: skip
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    for name, value in given.items():
        strategies, hint = _ONLY_FOR[name]
        if strategy not in strategies:
            raise UsageError(
                f"{name}={value!r} is for strategy {' and '.join(map(repr, strategies))}, not {strategy!r}. {hint}."
            )
    if patience is not None:
        given["patience"] = patience
    launcher: Launcher = catalogue.load("launcher", strategy)(restart=Restart(max_restarts=max_restarts), **given)
    return launcher
