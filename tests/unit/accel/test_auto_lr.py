"""Scaled learning rates: a scheduler that was told gives its own curve, multiplied."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.optim import SGD, lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from boxwright.accel.auto_lr import ScaleRate, WarmupTo, scale_rates
from boxwright.accel.nano import TorchNano
from boxwright.accel.trainer import Trainer
from boxwright.core.errors import UsageError

SCHEDULERS: dict[str, Callable[[SGD], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 3, gamma=0.5),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10, eta_min=0.01),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4, eta_min=0.01),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=12),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[4]
    ),
}


def rates_of(make: Callable[[SGD], Any], factor: float) -> list[float]:
    optimizer = SGD(nn.Linear(2, 1).parameters(), lr=0.1, momentum=0.9)
    scheduler = make(optimizer)
    scale_rates([optimizer], [scheduler], factor)
    rates = []
    for _ in range(10):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # SequentialLR's own doing
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_gives_its_curve_multiplied(name: str) -> None:
    plain, scaled = rates_of(SCHEDULERS[name], 1.0), rates_of(SCHEDULERS[name], 4.0)
    assert scaled == pytest.approx([4 * rate for rate in plain])
    assert len(set(plain)) > 1, "the curve must move, or this shows nothing"


def test_a_warm_up_goes_from_one_to_the_factor_and_stays() -> None:
    assert [WarmupTo(4.0, 3)(step) for step in range(5)] == [1.0, 2.0, 3.0, 4.0, 4.0]


class Scheduled(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.net(batch[0]).sum()

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=0.1)
        return [optimizer], [lr_scheduler.StepLR(optimizer, 1)]


@pytest.mark.filterwarnings("ignore")  # Lightning's advice on loaders and loggers
def test_a_warm_up_beside_a_scheduler_is_refused() -> None:
    trainer = Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ScaleRate(2.0, 1.0)],
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"StepLR.*both set the learning rate"):
        trainer.fit(Scheduled(), DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2))


def test_a_loop_of_ones_own_scales_before_its_scheduler_or_not_at_all() -> None:
    with pytest.raises(UsageError, match="Use auto_lr=True"):
        TorchNano(auto_lr={"warmup_epochs": 1})  # type: ignore[arg-type]

    def late(runner: TorchNano) -> None:
        net = nn.Linear(2, 1)
        optimizer = SGD(net.parameters(), lr=0.1)
        lr_scheduler.StepLR(optimizer, 1)
        runner.setup(net, optimizer)

    with pytest.raises(Exception, match="Make the scheduler after setup"):
        TorchNano(num_processes=2, auto_lr=True).launch(late)
