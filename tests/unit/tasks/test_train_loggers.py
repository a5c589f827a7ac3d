"""Loggers of a training run: TensorBoard's files read back, MLflow and W&B against modules that refuse wrong calls."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.shared import ROOT

from boxwright.core.errors import MissingDependencyError, UsageError
from boxwright.tasks.train.loggers import Callback, JsonLines, ResultsCsv, check_callbacks, make_callbacks

FAKES = ROOT / "tests" / "support" / "fake_loggers"


def go_through(callbacks: list[Callback], *, first: int = 1) -> None:
    for callback in callbacks:
        callback.on_start({"model": "yolox_nano", "batch": 4})
        callback.on_step(first, {"total": 2.5, "lr": 0.01})
        callback.on_evaluation(first, {"AP": 0.25})
        callback.on_end()


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    for name in ("mlflow", "wandb"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(FAKES)
    yield importlib.import_module("mlflow"), importlib.import_module("wandb")
    for name in ("mlflow", "wandb"):
        sys.modules.pop(name, None)


def test_tensorboard_is_written_unasked_and_reads_back(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    go_through(make_callbacks(tmp_path, [], resume_at=None))
    go_through(make_callbacks(tmp_path, ["tensorboard"], resume_at=1), first=2)
    (_, first), (_, second) = [
        (file, accumulator.EventAccumulator(str(file))) for file in sorted((tmp_path / "tensorboard").iterdir())
    ]
    for events, step in ((first, 1), (second, 2)):
        events.Reload()
        assert set(events.Tags()["scalars"]) == {"train/total", "train/lr", "val/AP"}
        assert [(e.step, e.value) for e in events.Scalars("train/total")] == [(step, 2.5)]
        text = events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
        assert "model: yolox_nano" in text


def test_mlflow_gets_settings_and_metrics_and_a_resumed_run_goes_on_in_the_same(
    tmp_path: Path, fakes: tuple[Any, Any]
) -> None:
    mlflow, _ = fakes
    go_through(make_callbacks(tmp_path, ["mlflow"], resume_at=None))
    go_through(make_callbacks(tmp_path, ["mlflow"], resume_at=1), first=2)
    (run,) = mlflow.runs.values()
    assert run["name"] == tmp_path.name
    assert run["params"] == {"model": "yolox_nano", "batch": "4"}
    assert run["ended"] == 2
    each = [("train/total", 2.5), ("train/lr", 0.01), ("val/AP", 0.25)]
    assert run["metrics"] == [(step, key, value) for step in (1, 2) for key, value in each]


def test_a_run_of_the_users_own_is_logged_to_and_left_open(tmp_path: Path, fakes: tuple[Any, Any]) -> None:
    mlflow, wandb = fakes
    mlflow.start_run(run_name="mine")
    wandb.run = wandb.Run()
    go_through(make_callbacks(tmp_path, ["mlflow", "wandb"], resume_at=None))
    (run,) = mlflow.runs.values()
    assert (run["name"], run["ended"], len(run["metrics"])) == ("mine", 0, 3)
    assert (wandb.runs, wandb.run.finished, len(wandb.run.lines)) == ([], 0, 2)


def test_wandb_stays_offline_unless_somebody_decides(tmp_path: Path, fakes: tuple[Any, Any]) -> None:
    _, wandb = fakes
    go_through(make_callbacks(tmp_path, ["wandb"], resume_at=None))
    wandb.settings.mode, wandb.settings.model_fields_set = "disabled", {"mode"}
    go_through(make_callbacks(tmp_path, ["wandb"], resume_at=1), first=2)
    first, second = wandb.runs
    assert first.started == {
        "dir": str(tmp_path), "name": tmp_path.name, "project": "boxwright", "mode": "offline", "id": None,
        "resume": None,
    }  # fmt: skip
    assert (second.started["id"], second.started["resume"], second.started["mode"]) == (first.id, "allow", "disabled")
    assert first.config == {"model": "yolox_nano", "batch": "4"}
    assert first.lines == [(1, {"train/total": 2.5, "train/lr": 0.01}), (1, {"val/AP": 0.25})]
    assert (first.finished, second.finished) == (1, 1)


def test_a_logger_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="Did you mean 'mlflow'"):
        make_callbacks(tmp_path, ["mlfow"], resume_at=None)
    monkeypatch.setattr("boxwright.tasks.train.loggers.missing_packages", lambda names: names)
    with pytest.raises(MissingDependencyError, match="pip install wandb"):
        make_callbacks(tmp_path, ["wandb"], resume_at=None)
    assert not list(tmp_path.iterdir()), "nothing is begun for a run that can't be logged"


def test_steps_after_the_checkpoint_that_come_again_are_written_once(tmp_path: Path) -> None:
    go_through([JsonLines(tmp_path / "m.jsonl", resume_at=None), ResultsCsv(tmp_path / "r.csv", resume_at=None)])
    whole = (tmp_path / "m.jsonl").read_text(), (tmp_path / "r.csv").read_text()
    with (tmp_path / "m.jsonl").open("a") as file:
        file.write('{"step": 9, "total": 1.0}\n{"step": 10, "to')  # killed while it wrote
    with (tmp_path / "r.csv").open("a") as file:
        file.write("9,0.5,0.6\n10,0.")
    for cls, name in ((JsonLines, "m.jsonl"), (ResultsCsv, "r.csv")):
        cls(tmp_path / name, resume_at=8).on_end()
    assert ((tmp_path / "m.jsonl").read_text(), (tmp_path / "r.csv").read_text()) == whole


class Misnamed(Callback):
    def on_epoch_end(self) -> None: ...


def test_a_callback_with_a_hook_that_is_never_called_is_refused(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "lines", resume_at=None)
    check_callbacks([lines, Callback()])
    lines.on_end()
    with pytest.raises(UsageError, match=r"callbacks\[1\] has a method 'on_epoch_end'.*on_start, on_step"):
        check_callbacks([Callback(), Misnamed()])
    for wrong in (print, Callback):
        with pytest.raises(UsageError, match=r"callbacks\[0\] .*on_evaluation"):
            check_callbacks([wrong])
