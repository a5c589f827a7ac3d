"""`Trainer.search`: it returns a module with the settings to use."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from boxwright.accel.search.lightning import find_defaults
from boxwright.accel.trainer import Trainer
from boxwright.core.errors import UsageError
from boxwright.core.spaces import Real


class Line(LightningModule):
    """Fits y = 3 x with one weight, from 0."""

    def __init__(self, lr: float = 1e-4, bias: bool = False) -> None:
        super().__init__()
        self.lr, self.layer = lr, nn.Linear(1, 1, bias=bias)
        nn.init.zeros_(self.layer.weight)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val/loss", nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def line_loader() -> DataLoader[Any]:
    x = torch.linspace(-1, 1, 16)[:, None]
    return DataLoader(TensorDataset(x, 3 * x), batch_size=8)


def make_trainer(folder: Path) -> Trainer:
    return Trainer(
        max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder,
    )  # fmt: skip


def search_line(trainer: Trainer, low: float, high: float) -> Any:
    return trainer.search(
        Line, {"lr": Real(low, high, log=True)}, target_metric="val/loss", direction="minimize", n_trials=2, repeats=2,
        train_dataloaders=line_loader(), val_dataloaders=line_loader(),
    )  # fmt: skip


def test_a_search_that_finds_nothing_better_returns_a_module_with_the_defaults(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    with pytest.raises(UsageError, match="There was no search"):
        trainer.search_summary()
    model = search_line(trainer, 1e-9, 1e-8)
    summary = trainer.search_summary()
    assert [row.state for row in summary.trials] == ["complete", "complete"]
    assert (dict(summary.trials[0].settings), summary.best, summary.is_better) == ({}, 0, False)
    assert (type(model), model.lr, float(model.layer.weight.detach())) == (Line, 1e-4, 0.0)
    assert (tmp_path / "search" / "journal.log").exists()
    with pytest.raises(UsageError, match="holds a search already"):
        search_line(trainer, 1e-9, 1e-8)


@pytest.mark.more
def test_a_search_returns_a_module_with_settings_that_are_surely_better(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    model = search_line(trainer, 0.05, 0.5)
    summary = trainer.search_summary()
    assert (summary.best, summary.is_better) == (1, True)
    assert model.lr == summary.settings["lr"] == summary.trials[1].settings["lr"]


def test_a_setting_without_a_default_and_an_unknown_one_are_refused(tmp_path: Path) -> None:
    def make(lr: float) -> Line:
        return Line(lr)

    with pytest.raises(UsageError, match="'lr' has no default"):
        find_defaults(make, {"lr": Real(0.1, 1.0)})
    assert find_defaults(make, {"lr": Real(0.1, 1.0, default=0.5)}) == {"lr": 0.5}
    with pytest.raises(UsageError, match="takes no 'momentum', which has a space"):
        find_defaults(Line, {"momentum": Real(0.1, 1.0)})
