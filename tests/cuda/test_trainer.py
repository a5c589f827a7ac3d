"""Lightning's Trainer on a GPU: the precision inside is the one that was asked for, and the plan is true."""

from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from boxwright.accel.trainer import Trainer

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device (make test-cuda)"),
    pytest.mark.filterwarnings("ignore"),  # Lightning's advice on loaders
]


class Watched(LightningModule):
    """Remembers what its forward pass computed in, and where."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.seen: set[tuple[torch.dtype, str, bool]] = set()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, targets = batch
        outputs = self.net(inputs)
        self.seen.add((outputs.dtype, outputs.device.type, torch.backends.cudnn.allow_tf32))
        return nn.functional.mse_loss(outputs.float(), targets)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        output: Tensor = self.net(batch[0])
        self.seen.add((output.dtype, output.device.type, torch.backends.cudnn.allow_tf32))
        return output

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def make_loader() -> DataLoader[Any]:
    inputs = torch.sin(torch.arange(128, dtype=torch.float32)).reshape(16, 8)
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("32", torch.float32), ("16", torch.float16), ("bf16", torch.bfloat16)]
)
def test_a_fit_computes_in_what_was_asked_for(precision: str, dtype: torch.dtype) -> None:
    model = Watched()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    allowed = torch.backends.cudnn.allow_tf32
    trainer = Trainer(
        accelerator="cuda", num_processes=1, precision=precision, max_epochs=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    assert trainer.plan.device == "cuda"
    assert "device       cuda" in trainer.plan.lines()
    assert isinstance(trainer.accelerator, CUDAAccelerator)
    trainer.fit(model, make_loader())
    assert trainer.global_step == 8
    assert model.seen == {(dtype, "cuda", False)}
    assert torch.backends.cudnn.allow_tf32 == allowed
    assert any(not torch.equal(value.cpu(), before[key]) for key, value in model.state_dict().items())
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())
    plugin = trainer.precision_plugin
    scaler = plugin.scaler if isinstance(plugin, MixedPrecision) else None
    assert (scaler is not None) == (precision == "16")
    if scaler is not None:
        assert scaler._device == "cuda"
        assert scaler._scale is not None
        assert scaler._scale.device.type == "cuda"
    predicted = trainer.predict(model, make_loader())
    assert predicted is not None
    assert sum(len(part) for part in predicted) == 16


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_after_a_fit_on_two_gpus_the_rest_runs_on_one() -> None:
    model = Watched()
    trainer = Trainer(
        accelerator="cuda", num_processes=2, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, make_loader())
    predicted = trainer.predict(model, make_loader())
    assert predicted is not None
    expected = model.net(torch.cat([batch[0] for batch in make_loader()]))
    torch.testing.assert_close(torch.cat(predicted), expected, rtol=1e-4, atol=1e-5)
    assert {"cuda"} == {place for _, place, _ in model.seen}
