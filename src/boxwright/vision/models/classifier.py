"""An image classifier for the Trainer."""

from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor, nn

from boxwright.vision.models.backbone import remove_top


class ImageClassifier(LightningModule):
    """A LightningModule that trains a network and a head to tell classes of images apart.

    Subclass it and override `configure_optimizers`. It logs `train_loss`, `val_loss`, `val_acc`, `test_loss` and
    `test_acc`.

    Args:
        backbone: a network with `get_output_size()`, or one whose last layers (`fc` or `classifier`) are removed here.
        num_classes: how many classes there are.
        head: what makes logits of the features; by default one linear layer.
        criterion: the loss of (logits, class numbers); by default cross-entropy.

    Example:
        >>> import torch
        >>> from boxwright.vision.models import resnet18
        >>> ImageClassifier(resnet18(), num_classes=5)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        backbone: nn.Module,
        num_classes: int,
        head: nn.Module | None = None,
        criterion: nn.Module | None = None,
    ) -> None:
        super().__init__()
        body: Any = backbone if hasattr(backbone, "get_output_size") else remove_top(backbone)
        self.model = nn.Sequential(body, nn.Linear(body.get_output_size(), num_classes) if head is None else head)
        self.criterion = nn.CrossEntropyLoss() if criterion is None else criterion

    def forward(self, x: Tensor) -> Any:
        """Return the classes' logits of the images."""
        return self.model(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002 - Lightning's signature
        """Return the loss of a batch of images and class numbers."""
        images, targets = batch
        loss = self.criterion(self(images), targets)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Log loss and accuracy."""
        self._score("val", batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Log loss and accuracy."""
        self._score("test", batch)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002
        """Return the logits; of a pair, the first part are the images."""
        return self(batch[0] if isinstance(batch, (list, tuple)) else batch)

    def _score(self, name: str, batch: Any) -> None:
        images, targets = batch
        logits = self(images)
        right = (logits.argmax(dim=1) == targets).float().mean()
        # Workers see different batches.
        self.log_dict(
            {f"{name}_loss": self.criterion(logits, targets), f"{name}_acc": right},
            sync_dist=True,
            batch_size=len(targets),
        )
