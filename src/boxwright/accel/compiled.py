"""A plain module, its loss and its optimizer as one LightningModule."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from boxwright.core.batches import BatchForm


class Compiled(LightningModule):
    """What `Trainer.compile` returns; its state dict takes the plain module's keys, too."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        optimizer: Optimizer,
        scheduler: LRScheduler | None,
        metrics: Sequence[Any],
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self._optimizer, self._scheduler = optimizer, scheduler
        self.metrics = nn.ModuleList(m for m in metrics if isinstance(m, nn.Module))
        self._functions = [m for m in metrics if not isinstance(m, nn.Module)]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain module."""
        return self.model(*args, **kwargs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002 - Lightning's signature
        """Return the loss of a batch."""
        (args, kwargs), target = BatchForm(self.model).split(batch)
        loss = self.loss(self(*args, **kwargs), target)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Log loss and metrics of a batch."""
        self._score(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Log loss and metrics of a batch."""
        self._score(batch, "test")

    def predict_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002
        """Return the outputs for a batch, with or without a target."""
        (args, kwargs), _ = BatchForm(self.model).split(batch)
        return self.model(*args, **kwargs)

    def _score(self, batch: Any, phase: str) -> None:
        (args, kwargs), target = BatchForm(self.model).split(batch)
        output = self(*args, **kwargs)
        self.log(f"{phase}/loss", self.loss(output, target), sync_dist=True)
        for i, metric in enumerate(self.metrics):
            metric(output, target)
            self.log(f"{phase}/{type(metric).__name__}_{i}", metric)  # type: ignore[arg-type]
        for i, function in enumerate(self._functions, start=len(self.metrics)):
            name = getattr(function, "__name__", type(function).__name__)
            self.log(f"{phase}/{name}_{i}", function(output, target), sync_dist=True)

    def configure_optimizers(self) -> Any:
        """Return the optimizer, with its scheduler."""
        if self._scheduler is None:
            return self._optimizer
        return {"optimizer": self._optimizer, "lr_scheduler": self._scheduler}

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load this module's weights, or those of the plain module in it."""
        plain = self.model.state_dict()
        if state_dict and all(name in plain for name in state_dict):
            return self.model.load_state_dict(state_dict, *args, **kwargs)
        return super().load_state_dict(state_dict, *args, **kwargs)
