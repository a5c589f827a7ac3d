"""The decoupled head: boxes, objectness and classes of every grid cell."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from boxwright.detector.backbone import Pyramid
from boxwright.detector.blocks import ConvBlock, conv_block


class RawOutputs(NamedTuple):
    """The network's output for each of the A grid cells, before sigmoid and decoding.

    The three stay apart: a loss reads them one by one, and a quantiser must not give boxes and scores one scale.
    """

    boxes: Tensor  # (B, A, 4): offset from the cell and log size, in strides
    objectness: Tensor  # (B, A, 1): logits
    classes: Tensor  # (B, A, C): logits

    def join(self, *, sigmoid: bool) -> Tensor:
        """Return one (B, A, 5 + C) tensor, as the official exports have it."""
        if sigmoid:
            return torch.cat((self.boxes, self.objectness.sigmoid(), self.classes.sigmoid()), dim=2)
        return torch.cat(self, dim=2)


class DecoupledHead(nn.Module):
    """One stem and two branches per level."""

    def __init__(self, num_classes: int, channels: Sequence[int], hidden: int, *, act: str, depthwise: bool) -> None:
        super().__init__()

        def branch() -> nn.Sequential:
            return nn.Sequential(
                *(conv_block(hidden, hidden, 3, act=act, depthwise=depthwise) for _ in range(2)),
            )

        def predict(outputs: int) -> nn.ModuleList:
            return nn.ModuleList(nn.Conv2d(hidden, outputs, 1) for _ in channels)

        self.cls_convs = nn.ModuleList(branch() for _ in channels)
        self.reg_convs = nn.ModuleList(branch() for _ in channels)
        self.cls_preds = predict(num_classes)
        self.reg_preds = predict(4)
        self.obj_preds = predict(1)
        self.stems = nn.ModuleList(ConvBlock(c, hidden, 1, act=act) for c in channels)
        # Every cell starts at probability 0.01, else the many empty cells swamp the first steps.
        for layer in (*self.cls_preds, *self.obj_preds):
            nn.init.constant_(layer.bias, -math.log(99))

    def forward(self, pyramid: Pyramid) -> RawOutputs:
        """Return the raw outputs of all levels, stride 8 first."""
        boxes, objectness, classes = [], [], []
        for level, features in enumerate(pyramid):
            stem = self.stems[level](features)
            box_features = self.reg_convs[level](stem)
            boxes.append(_cells(self.reg_preds[level](box_features)))
            objectness.append(_cells(self.obj_preds[level](box_features)))
            classes.append(_cells(self.cls_preds[level](self.cls_convs[level](stem))))
        return RawOutputs(torch.cat(boxes, 1), torch.cat(objectness, 1), torch.cat(classes, 1))


def _cells(x: Tensor) -> Tensor:  # (B, C, H, W) -> (B, H·W, C)
    return x.permute(0, 2, 3, 1).flatten(1, 2)
