"""`auto_lr`: learning rates and schedules multiplied by the number of processes, at once or over a warm-up."""

import math
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from boxwright.core.errors import UsageError

_GROUP_RATES = ("lr", "initial_lr", "max_lr", "min_lr")
_SCHEDULER_RATES = ("base_lrs", "max_lrs", "eta_min")


def scale_rates(optimizers: Sequence[Optimizer], schedulers: Sequence[Any], factor: float) -> None:
    """Multiply the rates of optimizers, and the rates that their schedulers start from and lead to.

    A scaled scheduler gives `factor` times its original curve.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
        >>> scale_rates([optimizer], [], 2.0)
        >>> optimizer.param_groups[0]["lr"]
        0.2
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group.update({name: group[name] * factor for name in _GROUP_RATES if name in group})
    for scheduler in schedulers:
        for name in _SCHEDULER_RATES:
            value = getattr(scheduler, name, None)
            if isinstance(value, list):
                setattr(scheduler, name, [rate * factor for rate in value])
            elif value is not None:
                setattr(scheduler, name, value * factor)
        scale_rates([], getattr(scheduler, "_schedulers", []), factor)  # of SequentialLR and ChainedScheduler


class WarmupTo:
    """The factor of a step on the way from 1 to `factor`; a class, because it is pickled."""

    def __init__(self, factor: float, steps: int) -> None:
        self._factor, self._steps = factor, steps

    def __call__(self, step: int) -> float:
        """Return the factor of a step, counted from 0."""
        return 1 + (self._factor - 1) * min(step / self._steps, 1.0)


class ScaleRate(Callback):
    """Scales learning rates once before training starts.

    Without a warm-up, schedulers are scaled too. A warm-up is a scheduler like any other: in the trainer's list, in
    checkpoints and in what LearningRateMonitor logs. It can't be combined with a scheduler of the user's, because two
    can't set one rate.
    """

    def __init__(self, factor: float, warmup_epochs: float = 0.0) -> None:
        self._factor, self._warmup_epochs = factor, warmup_epochs

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Scale the rates, or add a warm-up."""
        configs = trainer.lr_scheduler_configs
        if not self._warmup_epochs:
            scale_rates(trainer.optimizers, [config.scheduler for config in configs], self._factor)
            return
        asked = f"auto_lr={{'warmup_epochs': {self._warmup_epochs:g}}}"
        if configs:
            name = type(configs[0].scheduler).__name__
            raise UsageError(
                f"{asked} and the {name} of configure_optimizers() would both set the learning rate. Put the warm-up "
                "into that scheduler, or use auto_lr=True, which scales it as a whole."
            )
        if not pl_module.automatic_optimization:
            raise UsageError(f"{asked} needs automatic optimization: a manual loop must step its scheduler itself.")
        trainer.fit_loop.setup_data()  # otherwise the number of batches is known only later
        if math.isinf(trainer.num_training_batches):
            raise UsageError(f"{asked}, but the length of an epoch of this data is unknown. Use auto_lr=True.")
        each = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        steps = max(1, round(self._warmup_epochs * each))
        trainer.strategy.lr_scheduler_configs = [
            LRSchedulerConfig(LambdaLR(optimizer, WarmupTo(self._factor, steps)), interval="step")
            for optimizer in trainer.optimizers
        ]
