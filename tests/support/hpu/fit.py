"""`python -m support.hpu.fit OUT ACCELERATOR PROCESSES PRECISION`: fits, validates and predicts with a small model."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from boxwright.accel.trainer import Trainer
from boxwright.devices.options import DeviceOptions


class Watched(nn.Linear):
    """Remembers where its inputs were."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.seen: set[str] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add(x.device.type)
        return super().forward(x)


def fit(accelerator: str, processes: int, precision: str, batch: int) -> dict[str, Any]:
    """Return weights, losses and outputs; `batch` counts the samples of one process."""
    torch.manual_seed(0)
    watched = Watched(8, 16)
    model = nn.Sequential(watched, nn.SiLU(), nn.Linear(16, 2))
    data = TensorDataset(torch.randn(16, 8), torch.randint(0, 2, (16,)))
    module = Trainer.compile(
        model, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    trainer = Trainer(
        num_processes=processes, accelerator=accelerator, precision=precision, max_epochs=2, logger=False,
        device_options=DeviceOptions(lazy=True) if accelerator == "hpu" else None,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(data, batch_size=batch), DataLoader(data, batch_size=8))
    state = {key: value.detach().cpu() for key, value in model.state_dict().items()}
    found: dict[str, Any] = {"weights": state, "loss": float(trainer.callback_metrics["val/loss"])}
    watched.seen.clear()
    (scores,) = trainer.validate(module, DataLoader(data, batch_size=8), verbose=False)
    found["metric"] = float(trainer.callback_metrics["val/loss"])
    predicted = trainer.predict(module, DataLoader(data, batch_size=8))
    assert predicted is not None
    found |= {"validated": scores["val/loss"], "predicted": torch.cat(predicted).float().cpu()}  # type: ignore[arg-type]
    found |= {"where": sorted(watched.seen), "plan": trainer.plan.lines()}
    return found


def main() -> None:
    out, accelerator, processes, precision = sys.argv[1:]
    torch.save(fit(accelerator, int(processes), precision, batch=4), Path(out))


if __name__ == "__main__":
    main()
