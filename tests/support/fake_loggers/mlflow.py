"""Stands in for MLflow: knows the calls that we make, with MLflow's own rules, and refuses everything else."""

from types import SimpleNamespace
from typing import Any

runs: dict[str, dict[str, Any]] = {}
_active: list[str] = []


def active_run() -> Any:
    return SimpleNamespace(info=SimpleNamespace(run_id=_active[-1])) if _active else None


def start_run(run_id: str | None = None, *, run_name: str | None = None) -> Any:
    if _active:
        raise RuntimeError(f"Run with UUID {_active[-1]} is already active.")
    if run_id is None:
        run_id = f"run{len(runs)}"
        runs[run_id] = {"name": run_name, "params": {}, "metrics": [], "ended": 0}
    assert run_id in runs, f"Run {run_id} not found"
    _active.append(run_id)
    return active_run()


def log_params(params: dict[str, Any]) -> None:
    kept = runs[_active[-1]]["params"]
    for key, value in params.items():
        assert kept.setdefault(key, value) == value, "Changing param values is not allowed"


def log_metrics(metrics: dict[str, float], *, step: int) -> None:
    for key, value in metrics.items():
        assert isinstance(value, float | int), (key, value)
        assert not set(key) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. /"), key
        runs[_active[-1]]["metrics"].append((step, key, value))


def end_run() -> None:
    runs[_active.pop()]["ended"] += 1
