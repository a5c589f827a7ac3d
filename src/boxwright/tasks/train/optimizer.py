"""The optimizer of the recipe, freezing, and class weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from boxwright.core.errors import UsageError
from boxwright.data.records import Records
from boxwright.devices.base import Device
from boxwright.tasks.train.config import TrainConfig


def make_optimizer(model: nn.Module, config: TrainConfig, hardware: Device) -> torch.optim.Optimizer:
    """Return SGD with Nesterov momentum over three groups: norm weights, convolution weights (decayed), biases."""
    norms: list[Tensor] = []
    weights: list[Tensor] = []
    biases: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            norms.append(module.weight)
            biases.append(module.bias)
        elif isinstance(module, nn.Conv2d):
            weights.append(module.weight)
            if module.bias is not None:
                biases.append(module.bias)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in norms if p.requires_grad]},
        {"params": [p for p in weights if p.requires_grad], "weight_decay": config.weight_decay},
        {"params": [p for p in biases if p.requires_grad]},
    ]
    if not any(group["params"] for group in groups):
        raise UsageError(f"freeze={config.freeze!r} leaves nothing to train.")
    used = [group for group in groups if group["params"]]
    return hardware.make_sgd(used, lr=0.0, momentum=config.momentum, nesterov=True)


def freeze(model: nn.Module, prefixes: Sequence[str]) -> list[nn.BatchNorm2d]:
    """Stop gradients of all parameters whose names start so; return their batch-norms, which must stay in eval mode.

    Raises:
        UsageError: no parameter has such a name.
    """
    for prefix in prefixes:
        frozen = [p for name, p in model.named_parameters() if name.startswith(prefix)]
        if not frozen:
            tops = sorted({name.split(".")[0] for name, _ in model.named_parameters()})
            raise UsageError(f"freeze={prefix!r} names no part of the network. Its parts: {', '.join(tops)}.")
        for parameter in frozen:
            parameter.requires_grad_(False)
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d) and any(name.startswith(p) for p in prefixes)
    ]


def class_weights(records: Records, config: TrainConfig) -> Tensor | None:
    """Return a weight for each class, 1 on average over the boxes; None where they are off."""
    if config.class_weights == "off":
        return None
    counts = np.bincount(records.class_ids[~records.crowd], minlength=len(records.names)).clip(1)
    weights = 1 / np.sqrt(counts)
    return torch.from_numpy(weights * counts.sum() / (weights * counts).sum()).float()
