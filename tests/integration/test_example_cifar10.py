"""The CIFAR-10 example, on a made-up set in the published files' layout."""

import hashlib
import importlib.util
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from boxwright.accel.trainer import Trainer
from boxwright.vision.datasets import CIFAR10

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice on loaders and loggers

EXAMPLE = Path(__file__).parents[2] / "examples" / "cifar10_trainer.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cifar10_trainer", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.BATCH_SIZE = 4  # type: ignore[attr-defined]
    return module


@pytest.fixture
def made_up(tmp_path: Path) -> type[CIFAR10]:
    """Write eleven images in six files, and return the class that knows their checksums."""
    rng = np.random.default_rng(0)

    def write(name: str, content: dict[str, Any]) -> tuple[str, str]:
        file = tmp_path / "cifar-10-batches-py" / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(pickle.dumps(content))
        return name, hashlib.md5(file.read_bytes()).hexdigest()

    def batch(name: str, images: int) -> tuple[str, str]:
        labels = rng.integers(0, 10, images).tolist()
        return write(name, {"data": rng.integers(0, 256, (images, 3072), np.uint8), "labels": labels})

    class MadeUp(CIFAR10):
        train_list: ClassVar = [batch(f"data_batch_{part}", 2) for part in range(1, 6)]
        test_list: ClassVar = [batch("test_batch", 1)]
        meta = write("batches.meta", {"label_names": [f"class {i}" for i in range(10)]})

    return MadeUp


@pytest.mark.parametrize(("processes", "use_ipex"), [(1, False), (1, True), (2, True)])
def test_the_example_trains(
    example: ModuleType, made_up: type[CIFAR10], tmp_path: Path, processes: int, use_ipex: bool
) -> None:
    torch.manual_seed(0)
    model = example.LitResnet(learning_rate=0.05, num_processes=processes)
    before = model.model.conv1.weight.detach().clone()
    trainer = Trainer(
        max_epochs=1, num_processes=processes, use_ipex=use_ipex, default_root_dir=tmp_path, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    data = example.create_data_module(str(tmp_path), val_split=0.2, dataset_cls=made_up)
    trainer.fit(model, datamodule=data)
    assert trainer.global_step == 2 // processes, "eight images, four a step of each process"
    assert {"train_loss", "val_loss", "val_acc"} <= set(trainer.callback_metrics)
    assert not torch.equal(model.model.conv1.weight, before)
    assert trainer.plan.channels_last == use_ipex
    assert model.model.conv1.weight.is_contiguous(memory_format=torch.channels_last) == use_ipex


def test_no_image_is_learned_from_and_scored_on(example: ModuleType, made_up: type[CIFAR10], tmp_path: Path) -> None:
    data = example.create_data_module(str(tmp_path), val_split=0.2, dataset_cls=made_up)
    data.setup("fit")
    learned, scored = set(data.dataset_train.indices), set(data.dataset_val.indices)
    assert (len(learned), len(scored), len(data.dataset_test)) == (8, 2, 1)
    assert not learned & scored
    images, labels = next(iter(data.train_dataloader()))
    assert images.shape == (4, 3, 32, 32)
    assert images.max() <= 1
    assert labels.dtype == torch.int64
