"""A small regression and its estimator, for tests: every number can be had from a plain loop as well."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from boxwright.accel.estimator import Callback, Estimator, Run

SAMPLES = 22  # 2 workers and batches of 4 leave an odd rest


def make_set(samples: int = SAMPLES) -> TensorDataset:
    x = torch.sin(torch.arange(4.0 * samples)).reshape(samples, 4)
    return TensorDataset(x, x.sum(1, keepdim=True))


def make_model(config: dict[str, Any]) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8) if config.get("norm") else nn.Tanh(), nn.Linear(8, 1))


def make_optimizer(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=config.get("lr", 0.1), momentum=0.9)


def make_loader(config: dict[str, Any], batch_size: int | None) -> DataLoader[Any]:
    return DataLoader(
        make_set(config.get("samples", SAMPLES)), batch_size=batch_size, shuffle=config.get("shuffle", False)
    )


def make_estimator(**changes: Any) -> Estimator:
    settings: dict[str, Any] = {"model": make_model, "optimizer": make_optimizer, "loss": nn.MSELoss()}
    return Estimator.from_torch(**settings | changes)


def train_plainly(epochs: int, batch: int, samples: int, scheduler: Any = None) -> dict[str, torch.Tensor]:
    """Return the weights after a loop that a user would write without any of this."""
    model = make_model({})
    optimizer = make_optimizer(model, {})
    schedule = scheduler(optimizer, {}) if scheduler else None
    for _ in range(epochs):
        for x, y in DataLoader(make_set(samples), batch_size=batch):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        if schedule:
            schedule.step()
    return model.state_dict()


def assert_same_weights(found: dict[str, Any], expected: dict[str, Any], bound: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=0, atol=bound, msg=lambda text, name=name: f"{name}: {text}"
        )


class Diary(Callback):
    """Writes each worker's moments to a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _write(self, run: Run, word: str) -> None:
        with (self._folder / f"{run.nano.global_rank}.txt").open("a") as file:
            file.write(f"{word} {run.epoch} {run.iteration}\n")

    def before_run(self, run: Run) -> None:
        self._write(run, "before_run")

    def after_run(self, run: Run) -> None:
        self._write(run, "after_run")

    def before_epoch(self, run: Run) -> None:
        self._write(run, "before_epoch")

    def after_epoch(self, run: Run) -> None:
        assert run.metrics["train_loss"] > 0
        self._write(run, "after_epoch")

    def before_iteration(self, run: Run) -> None:
        assert len(run.batch) == 2
        assert run.result is None
        self._write(run, "before_iteration")

    def after_iteration(self, run: Run) -> None:
        assert run.result is not None
        assert run.result.losses["loss"] >= 0
        self._write(run, "after_iteration")


class KillOnce(Callback):
    """Kills a worker in the middle of an epoch, the first time it comes there."""

    def __init__(self, flag: Path, epoch: int) -> None:
        self._flag, self._epoch = flag, epoch

    def before_iteration(self, run: Run) -> None:
        if (
            run.epoch == self._epoch
            and run.iteration % 5 == 2
            and run.nano.global_rank == 1
            and not self._flag.exists()
        ):
            self._flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
