"""Stands in for Weights & Biases: knows the calls that we make, and refuses everything else."""

from types import SimpleNamespace
from typing import Any

run: Any = None
runs: list[Any] = []
settings = SimpleNamespace(mode="online", model_fields_set=set())


def setup() -> Any:
    return SimpleNamespace(settings=settings)


class _Config(dict[str, Any]):
    def update(self, values: dict[str, Any], *, allow_val_change: bool = False) -> None:  # type: ignore[override]
        for key, value in values.items():
            assert allow_val_change or self.get(key, value) == value, "use allow_val_change"
            self[key] = value


class Run:
    def __init__(self, **started: Any) -> None:
        self.started = started
        self.id = started.get("id") or f"id{len(runs)}"
        self.config = _Config()
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.finished = 0

    def log(self, data: dict[str, float], *, step: int) -> None:
        assert not self.finished
        assert all(isinstance(value, float | int) for value in data.values())
        self.lines.append((step, data))

    def finish(self) -> None:
        self.finished += 1


def init(*, dir: str, name: str, project: str, mode: str, id: str | None = None, resume: str | None = None) -> Run:
    assert mode in ("online", "offline", "disabled", "shared")
    assert (id is None) == (resume is None)
    runs.append(Run(dir=dir, name=name, project=project, mode=mode, id=id, resume=resume))
    return runs[-1]
