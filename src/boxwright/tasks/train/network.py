"""The network of a run: built, frozen in part, and its optimizer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from boxwright.accel.kernels import NormSilu, StridedDepthwise, pack_patches
from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger
from boxwright.core.types import Precision
from boxwright.data.records import Records
from boxwright.detector.blocks import ConvBlock, Focus
from boxwright.detector.weights import check_finite, load_weights, read_state
from boxwright.detector.yolox import build
from boxwright.devices.base import Device
from boxwright.tasks.train.config import TrainConfig

_log = get_logger(__name__)


class PackedFocus(nn.Module):
    """A `Focus` that also takes bytes, converted and packed in one pass. Parameters and their names are shared."""

    def __init__(self, focus: Focus) -> None:
        super().__init__()
        self.conv = focus.conv

    def forward(self, images: Tensor) -> Tensor:
        """Return features of half the height and width."""
        autocast = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if autocast else self.conv.conv.weight.dtype
        out: Tensor = self.conv(pack_patches(images, dtype))
        return out


def make_network(config: TrainConfig, num_classes: int) -> nn.Module:
    """Return the network with the weights of `config.ckpt`, and operators that train faster on a CPU.

    On GPUs and Gaudi these are PyTorch's own. State dicts keep their keys; networks for exporting are built anew.
    """
    network = build(config.model, num_classes)
    if config.ckpt is not None:
        state, _ = read_state(config.ckpt)
        _log.info("%s: %s", config.ckpt.name, load_weights(network, state, new_head=True).sentence())
        check_finite(state, config.ckpt)
    for block in network.modules():
        if not isinstance(block, ConvBlock):
            continue
        if isinstance(block.act, nn.SiLU) and type(block.bn) is nn.BatchNorm2d:
            block.bn, block.act = NormSilu.of(block.bn), nn.Identity()
        conv = block.conv
        if conv.groups == conv.in_channels and conv.groups > 1 and conv.stride != (1, 1):
            block.conv = StridedDepthwise.of(conv)
    for parent in [*network.modules()] if config.device == "cpu" else ():
        for name, part in parent.named_children():
            if isinstance(part, Focus):
                setattr(parent, name, PackedFocus(part))
    return network


def image_type(network: nn.Module, config: TrainConfig) -> torch.dtype:
    """Return the type in which a network of `make_network` takes its images."""
    if any(isinstance(part, PackedFocus) for part in network.modules()):
        return torch.uint8
    # Whole numbers to 255 are exact in bf16, and the first convolution would round to it anyway.
    reduced = Precision.parse(config.precision) in (Precision.BF16, Precision.BF16_TRUE)
    return torch.bfloat16 if reduced else torch.float32


def freeze(model: nn.Module, prefixes: Sequence[str]) -> list[nn.BatchNorm2d]:
    """Stop gradients of all parameters with these prefixes; return their batch-norms, which must stay in eval mode.

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


def make_optimizer(model: nn.Module, config: TrainConfig, hardware: Device) -> torch.optim.Optimizer:
    """Return SGD with Nesterov momentum over three groups: norm weights, convolution weights (decayed), biases."""
    norms: list[Tensor] = []
    weights: list[Tensor] = []
    biases: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.Conv2d):
            (norms if isinstance(module, nn.BatchNorm2d) else weights).append(module.weight)
            if module.bias is not None:
                biases.append(module.bias)
    groups: list[dict[str, Any]] = [
        {"params": norms},
        {"params": weights, "weight_decay": config.weight_decay},
        {"params": biases},
    ]
    for group in groups:
        group["params"] = [p for p in group["params"] if p.requires_grad]
    used = [group for group in groups if group["params"]]
    if not used:
        raise UsageError(f"freeze={config.freeze!r} leaves nothing to train.")
    return hardware.make_sgd(used, lr=0.0, momentum=config.momentum, nesterov=True)


def class_weights(records: Records, config: TrainConfig) -> Tensor | None:
    """Return a weight for each class, 1 on average over the boxes; None if they are off."""
    if config.class_weights == "off":
        return None
    counts = np.bincount(records.class_ids[~records.crowd], minlength=len(records.names)).clip(1)
    weights = 1 / np.sqrt(counts)
    return torch.from_numpy(weights * counts.sum() / (weights * counts).sum()).float()
