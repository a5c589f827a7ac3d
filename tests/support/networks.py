"""Small real networks for tests."""

import torch
from torch import nn

from boxwright.detector.yolox import Yolox, build


def lively_nano(classes: int = 3) -> Yolox:
    """Return an untrained yolox_nano whose outputs depend on its input.

    A new network's deep layers fade to nothing, and any two inputs give the same output. So the statistics of its
    normalisations are measured on noise first, as training would do.
    """
    torch.manual_seed(0)
    model = build("yolox_nano", classes)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    momenta = [m.momentum for m in norms]
    for norm in norms:
        norm.momentum = None  # a plain average
    with torch.no_grad():
        model.train()(torch.rand(8, 3, 160, 160) * 255)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return model.eval()
