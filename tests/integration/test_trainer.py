"""Our Trainer is Lightning's, in one process and in two."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from support.clusters import further
from support.processes import listening_addresses
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from boxwright.accel.trainer import Trainer
from boxwright.core.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice on loaders and loggers

QUIET: dict[str, Any] = {
    "enable_progress_bar": False, "enable_model_summary": False, "logger": False, "max_epochs": 2,
}  # fmt: skip


class Lit(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.seen_dtype = ""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        out = self.net(x)
        self.seen_dtype = str(out.dtype)
        loss = nn.functional.mse_loss(out.float(), y.float())
        self.log("train_loss", loss)
        self.log("low", float(out.dtype == torch.float16) + 2 * float(out.dtype == torch.bfloat16))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Watched(Lit):
    """Logs whether strangers can connect to a process."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.log("open", float(listening_addresses() != {"127.0.0.1"}), sync_dist=True)
        return super().training_step(batch, batch_idx)


def make_loader(batch: int) -> DataLoader[Any]:
    x = torch.sin(torch.arange(64, dtype=torch.float32)).reshape(16, 4)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch)


@pytest.mark.parametrize("strategy", ["subprocess", *further("spawn")])
def test_two_processes_learn_what_one_learns_and_the_weights_come_back(strategy: str, tmp_path: Path) -> None:
    alone, together = Lit(), Watched()
    Trainer(enable_checkpointing=False, **QUIET).fit(alone, make_loader(16))
    keeper = ModelCheckpoint(filename="kept", monitor="train_loss")
    trainer = Trainer(
        num_processes=2, strategy=strategy, callbacks=[keeper], default_root_dir=tmp_path, log_every_n_steps=1, **QUIET
    )
    trainer.fit(together, make_loader(8))
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(together.state_dict()[name], value, rtol=0, atol=1e-6)
    assert "train_loss" in trainer.callback_metrics
    assert trainer.callback_metrics["open"] == 0
    assert keeper.best_model_path == str(tmp_path / "checkpoints" / "kept.ckpt")
    assert Path(keeper.best_model_path).is_file()
    assert trainer.global_step == 2
    for metrics in (trainer.callback_metrics, trainer.logged_metrics):
        assert metrics["train_loss"] == keeper.best_model_score == keeper.current_score
        assert metrics["train_loss"].dtype is torch.float32


@pytest.mark.parametrize(("precision", "low"), [("32", 0.0), ("16", 1.0), ("bf16", 2.0), ("bf16-true", 2.0)])
def test_every_precision_is_what_it_says(precision: str, low: float) -> None:
    trainer = Trainer(precision=precision, enable_checkpointing=False, **QUIET)
    model = Lit()
    trainer.fit(model, make_loader(8))
    assert float(trainer.callback_metrics["low"]) == low


def test_a_checkpoint_resumes(tmp_path: Path) -> None:
    keeper = ModelCheckpoint(dirpath=tmp_path, filename="kept")
    Trainer(callbacks=[keeper], **QUIET).fit(Lit(), make_loader(8))
    more = Trainer(enable_checkpointing=False, **(QUIET | {"max_epochs": 4}))
    more.fit(Lit(), make_loader(8), ckpt_path=str(tmp_path / "kept.ckpt"), weights_only=False)
    assert more.current_epoch == 4
    assert more.global_step == 8


def test_in_two_processes_auto_lr_multiplies_the_rate_and_16_is_fp16() -> None:
    class Watch(Lit):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.log("rate", self.trainer.optimizers[0].param_groups[0]["lr"])
            return super().training_step(batch, batch_idx)

    assert Trainer(num_processes=2, auto_lr=False, enable_checkpointing=False, **QUIET).plan.lr_factor == 1.0
    trainer = Trainer(num_processes=2, auto_lr=True, precision=16, enable_checkpointing=False, **QUIET)
    trainer.fit(Watch(), make_loader(8))
    assert trainer.plan.lr_factor == 2.0
    assert float(trainer.callback_metrics["low"]) == 1.0
    assert float(trainer.callback_metrics["rate"]) == pytest.approx(0.2)


class WatchRates(Lit):
    """Logs the rate of the last step, and that of the first."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        self.log("rate", rate)
        self.log(f"rate_{self.trainer.global_step}", rate)
        return super().training_step(batch, batch_idx)


def test_a_warm_up_reaches_the_scaled_rate_in_its_epochs_and_resumes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_processes": 2, "auto_lr": {"warmup_epochs": 2}}
    keeper = ModelCheckpoint(dirpath=tmp_path, filename="kept")
    trainer = Trainer(callbacks=[keeper], **settings, **(QUIET | {"max_epochs": 1}))
    trainer.fit(WatchRates(), make_loader(4))
    assert (trainer.plan.lr_factor, trainer.plan.lr_warmup_epochs) == (2.0, 2.0)
    rates = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("rate_")}
    assert rates == pytest.approx({"rate_0": 0.1, "rate_1": 0.125})
    more = Trainer(enable_checkpointing=False, **settings, **(QUIET | {"max_epochs": 4}))
    more.fit(WatchRates(), make_loader(4), ckpt_path=str(tmp_path / "kept.ckpt"), weights_only=False)
    rates = {name: float(value) for name, value in more.callback_metrics.items() if name.startswith("rate_")}
    assert rates == pytest.approx(
        {"rate_2": 0.15, "rate_3": 0.175, "rate_4": 0.2, "rate_5": 0.2, "rate_6": 0.2, "rate_7": 0.2}
    )


def test_compile_makes_a_module_of_model_loss_optimizer_and_metrics() -> None:
    net = nn.Linear(4, 1)
    before = net.weight.detach().clone()

    def biggest(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).abs().max()

    model = Trainer.compile(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.1), metrics=[biggest])
    trainer = Trainer(enable_checkpointing=False, **QUIET)
    trainer.fit(model, make_loader(8), make_loader(8))
    assert not torch.equal(net.weight, before)
    assert {"train/loss", "val/loss", "val/biggest_0"} <= set(trainer.callback_metrics)


def test_a_compiled_model_predicts_with_and_without_targets() -> None:
    net = nn.Linear(4, 1)
    model = Trainer.compile(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.1))
    inputs = make_loader(16).dataset.tensors[0]
    trainer = Trainer(enable_checkpointing=False, **QUIET)
    for data in (TensorDataset(inputs), TensorDataset(inputs, inputs), inputs):
        (found,) = trainer.predict(model, DataLoader(data, batch_size=16))
        assert torch.equal(found, net(inputs))


def test_bad_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="is Lightning's"):
        Trainer(num_processes=2, strategy="ddp_spawn")
    with pytest.raises(UsageError, match="needs a loss and an optimizer"):
        Trainer.compile(nn.Linear(1, 1))
    with pytest.raises(UsageError, match="has its own loss"):
        Trainer.compile(Lit(), loss=nn.MSELoss())
    with pytest.raises(UsageError, match="Unknown precision"):
        Trainer(precision="12")
