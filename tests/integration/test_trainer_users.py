"""What users of Lightning and of BigDL-Nano bring to the Trainer: their modules, configs and files."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from boxwright.accel.trainer import Trainer
from boxwright.core.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice on loaders and loggers

QUIET: dict[str, Any] = {
    "enable_progress_bar": False, "enable_model_summary": False, "logger": False, "max_epochs": 2,
    "enable_checkpointing": False,
}  # fmt: skip


def make_loader(batch: int) -> DataLoader[Any]:
    x = torch.sin(torch.arange(64, dtype=torch.float32)).reshape(16, 4)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch)


class Old(pl.LightningModule):
    """A module of the package pytorch_lightning, with a few of its habits."""

    def __init__(self, rate: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.save_hyperparameters()
        self.net = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = nn.functional.mse_loss(self(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", nn.functional.mse_loss(self(batch[0]), batch[1]))

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams.rate)


class OldData(pl.LightningDataModule):
    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch

    def train_dataloader(self) -> Any:
        return make_loader(self.batch)

    def val_dataloader(self) -> Any:
        return make_loader(self.batch)


def test_modules_of_pytorch_lightning_train_in_one_process_and_in_two() -> None:
    weights = {}
    for processes in (1, 2):
        model, trainer = Old(), Trainer(num_processes=processes, **QUIET)
        trainer.fit(model, datamodule=OldData(16 // processes))
        assert type(model) is Old
        assert {"loss", "val_loss"} <= set(trainer.callback_metrics)
        assert trainer.validate(model, make_loader(16), verbose=False)[0].keys() == {"val_loss"}
        assert trainer.predict(model, make_loader(16))[0].shape == (16, 1)
        weights[processes] = model.net.weight.detach()
    torch.testing.assert_close(weights[2], weights[1], rtol=0, atol=1e-6)


def test_a_callback_of_pytorch_lightning_is_refused_with_the_import_to_change() -> None:
    with pytest.raises(UsageError, match=r"from lightning\.pytorch\.callbacks import ModelCheckpoint"):
        Trainer(callbacks=[pl.callbacks.ModelCheckpoint()])


CLI = """
import sys
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from boxwright import Trainer

class Lit(LightningModule):
    def __init__(self, rate: float = 0.1):
        super().__init__()
        self.rate, self.net = rate, nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def train_dataloader(self):
        x = torch.ones(16, 4)
        return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)

if __name__ == "__main__":
    cli = LightningCLI(Lit, trainer_class=Trainer, save_config_callback=None)
    print("steps", cli.trainer.global_step, "processes", cli.trainer.plan.processes, "rate", cli.model.rate)
"""


def test_lightning_cli_takes_our_trainer_with_all_settings_of_both(tmp_path: Path) -> None:
    pytest.importorskip("jsonargparse")
    script, config = tmp_path / "script.py", tmp_path / "config.yaml"
    script.write_text(CLI)
    config.write_text(
        "trainer:\n  num_processes: 2\n  num_nodes: 1\n  devices: auto\n  accelerator: auto\n  strategy: auto\n"
        "  max_epochs: 1\n  logger: false\n  enable_checkpointing: false\n  enable_progress_bar: false\n"
    )
    command = [sys.executable, str(script), "fit", "--config", str(config), "--model.rate=0.2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert "steps 2 processes 2 rate 0.2" in done.stdout, done.stderr


class Gan(pl.LightningModule):
    """Two optimizers by hand; each step leaves the other half without gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.automatic_optimization = False
        self.make, self.judge = nn.Linear(4, 4), nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer, loss in zip(self.optimizers(), (self.judge(batch[0]), self.make(batch[0])), strict=True):
            optimizer.zero_grad()
            self.manual_backward(loss.pow(2).mean())
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.judge, self.make)]


def test_a_gan_trains_in_two_processes_with_find_unused_parameters() -> None:
    weights = {}
    for processes in (1, 2):
        model = Gan()
        Trainer(num_processes=processes, find_unused_parameters=True, num_nodes=1, **QUIET).fit(
            model, make_loader(16 // processes)
        )
        weights[processes] = model.state_dict()
    torch.testing.assert_close(weights[2], weights[1], rtol=0, atol=1e-6)
    with pytest.raises(UsageError, match="ddp_find_unused_parameters_true"):
        Trainer(strategy="ddp", find_unused_parameters=True)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return self.layer(first + second)


def test_weights_are_saved_loaded_and_taken_by_a_compiled_model(tmp_path: Path) -> None:
    def compiled() -> Any:
        net = Sum()
        return Trainer.compile(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.1))

    net, model = Sum(), compiled()
    model.load_state_dict(net.state_dict())
    assert torch.equal(model.model.layer.weight, net.layer.weight)
    Trainer.save(model, tmp_path / "weights.pt")
    for other in (Sum(), compiled()):
        loaded = Trainer.load(tmp_path / "weights.pt", other)
        assert loaded is other
        assert torch.equal(next(loaded.parameters()), net.layer.weight)
    again = compiled()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.model.layer.weight, net.layer.weight)


class Nested(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        x = torch.full((4,), float(index))
        return (((x, x), x.sum(0, keepdim=True)),)


def test_batches_of_one_nested_tuple_are_inputs_and_target() -> None:
    net = Sum()
    before = net.layer.weight.detach().clone()
    model = Trainer.compile(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.01))
    loader = DataLoader(Nested(), batch_size=2)
    trainer = Trainer(**QUIET)
    trainer.fit(model, loader, loader)
    assert "val/loss" in trainer.callback_metrics
    assert not torch.equal(net.layer.weight, before)
