"""Train ResNet-18 on CIFAR-10 with `Trainer`: python examples/cifar10_trainer.py --data FOLDER --num_processes 2.

FOLDER holds `cifar-10-batches-py`, the published Python version of the set. Nothing is downloaded. The module and the
data module are plain Lightning; what is Boxwright's is the Trainer, the transforms and the network.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Subset

from boxwright import Trainer
from boxwright.vision import transforms
from boxwright.vision.datasets import CIFAR10
from boxwright.vision.models import ResNet, resnet18

BATCH_SIZE = 64


class CIFAR10DataModule(LightningDataModule):
    """The training images in two parts, to learn from and to be scored on, and the test images.

    Args:
        data_dir: the folder that holds `cifar-10-batches-py`.
        val_split: how many training images are held out, or which part of them.
        num_workers: data workers of each process.
        batch_size: images a step of each process.
        seed: of the choice of the held-out images.
        train_transforms: changes images to learn from.
        val_transforms: changes the others.
        dataset_cls: reads the set.
    """

    def __init__(
        self,
        data_dir: str = ".",
        val_split: float = 5000,
        num_workers: int = 0,
        batch_size: int = 32,
        seed: int = 42,
        train_transforms: Callable[[Any], Any] | None = None,
        val_transforms: Callable[[Any], Any] | None = None,
        dataset_cls: type[CIFAR10] = CIFAR10,
    ) -> None:
        super().__init__()
        self.data_dir, self.val_split, self.num_workers = data_dir, val_split, num_workers
        self.batch_size, self.seed, self.dataset_cls = batch_size, seed, dataset_cls
        self.train_transforms = train_transforms or transforms.ToTensor()
        self.val_transforms = val_transforms or transforms.ToTensor()

    def setup(self, stage: str | None = None) -> None:
        """Read the files, in each process for itself."""
        learn = self.dataset_cls(self.data_dir, train=True, transform=self.train_transforms)
        score = self.dataset_cls(self.data_dir, train=True, transform=self.val_transforms)
        held_out = int(self.val_split if self.val_split >= 1 else self.val_split * len(learn))
        order = torch.randperm(len(learn), generator=torch.Generator().manual_seed(self.seed)).tolist()
        self.dataset_train = Subset(learn, order[held_out:])
        self.dataset_val = Subset(score, order[:held_out])
        self.dataset_test = self.dataset_cls(self.data_dir, train=False, transform=self.val_transforms)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the images to learn from, shuffled."""
        return self._loader(self.dataset_train, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return the held-out images."""
        return self._loader(self.dataset_val)

    def test_dataloader(self) -> DataLoader[Any]:
        """Return the test images."""
        return self._loader(self.dataset_test)

    def _loader(self, dataset: Any, *, shuffle: bool = False) -> DataLoader[Any]:
        return DataLoader(dataset, batch_size=self.batch_size, shuffle=shuffle, num_workers=self.num_workers)


def create_data_module(data_dir: str, **settings: Any) -> CIFAR10DataModule:
    """Return CIFAR-10 with the usual crops and flips."""
    train_transforms = transforms.Compose(
        [transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    return CIFAR10DataModule(data_dir=data_dir, batch_size=BATCH_SIZE, train_transforms=train_transforms, **settings)


def create_model() -> ResNet:
    """Return ResNet-18 for images of 32x32 pixels: a small first convolution, no pooling after it."""
    model = resnet18(pretrained=False, num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
    model.maxpool = nn.Identity()
    return model


class LitResnet(LightningModule):
    """ResNet-18 with its loss, optimizer and one-cycle schedule."""

    def __init__(self, learning_rate: float = 0.05, num_processes: int = 1) -> None:
        super().__init__()
        self.save_hyperparameters("learning_rate", "num_processes")
        self.model = create_model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the classes' log-probabilities."""
        return F.log_softmax(self.model(x), dim=1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Return the loss of a batch."""
        x, y = batch
        loss = F.nll_loss(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log loss and accuracy of a batch."""
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.nll_loss(logits, y), sync_dist=True)
        self.log("val_acc", (logits.argmax(dim=1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> Any:
        """Return SGD and its schedule."""
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.learning_rate, momentum=0.9, weight_decay=5e-4)
        # Each process sees its share of the images, so an epoch has fewer steps the more of them there are.
        steps_per_epoch = 45000 // BATCH_SIZE // self.hparams.num_processes
        scheduler_dict = {
            "scheduler": OneCycleLR(optimizer, 0.1, epochs=self.trainer.max_epochs, steps_per_epoch=steps_per_epoch),
            "interval": "step",
        }
        return {"optimizer": optimizer, "lr_scheduler": scheduler_dict}


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=".", help="the folder that holds cifar-10-batches-py")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--num_processes", type=int, default=1)
    parser.add_argument("--precision", default="32")
    parser.add_argument("--use_ipex", action="store_true")
    args = parser.parse_args()
    model = LitResnet(learning_rate=0.05 * min(args.num_processes, 2), num_processes=args.num_processes)
    trainer = Trainer(
        max_epochs=args.epochs, num_processes=args.num_processes, precision=args.precision, use_ipex=args.use_ipex
    )
    trainer.fit(model, datamodule=create_data_module(args.data))
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
