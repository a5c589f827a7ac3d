"""`python -m support.hpu.estimate OUT DEVICE`: fits and scores with an Estimator of two workers."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from boxwright.accel.estimator import Estimator


def make_model(config: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def make_optimizer(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def main() -> None:
    out, device = sys.argv[1:]
    inputs = torch.sin(torch.arange(44, dtype=torch.float32)).reshape(11, 4)
    targets = inputs.sum(1, keepdim=True)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=2)
    estimator = Estimator.from_torch(
        model=make_model, optimizer=make_optimizer, loss=nn.MSELoss(), workers_per_node=2, device=device
    )
    fitted = estimator.fit(loader, epochs=1)[-1]
    scored = estimator.evaluate(loader)
    with torch.no_grad():
        expected = float(nn.functional.mse_loss(estimator.get_model().cpu()(inputs), targets))
    Path(out).write_text(json.dumps({"fitted": fitted, "scored": scored, "expected": expected}))


if __name__ == "__main__":
    main()
