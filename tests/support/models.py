"""Small models for the runtimes: several inputs, keywords, nested outputs, a detector."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from boxwright.detector.blocks import ConvBlock
from boxwright.detector.head import DecoupledHead, RawOutputs


class Pair(NamedTuple):
    """A named result, as a model may return it."""

    mixed: Tensor
    best: Tensor


class TwoInputs(nn.Module):
    """Takes an image and, by keyword, a vector; gives a named pair in a dictionary beside a list."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.SiLU(inplace=True)
        self.again = nn.Conv2d(8, 8, 1)
        self.vector = nn.Linear(5, 8)

    def forward(self, image: Tensor, *, vector: Tensor) -> dict[str, Any]:
        features = self.act(self.norm(self.conv(image)))
        features = features + self.act(self.again(features))  # one activation module in two places
        mixed = features.mean((2, 3)) * self.vector(vector)
        return {"pair": Pair(mixed, mixed.argmax(1)), "maps": [features]}


def two_inputs() -> TwoInputs:
    """Return the model in evaluation mode, its normalisation not an identity."""
    torch.manual_seed(1)
    model = TwoInputs()
    with torch.no_grad():
        model.norm.running_mean.uniform_(-0.5, 0.5)
        model.norm.running_var.uniform_(0.5, 2.0)
    return model.eval()


class TinyDetector(nn.Module):
    """Three strides and YOLOX's head, small enough for compilers; for inputs of 64 times 96 it gives 126 rows."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(ConvBlock(3, 8, 3, stride=4), ConvBlock(8, 8, 3, stride=2))
        self.deeper = nn.ModuleList(ConvBlock(8, 8, 3, stride=2) for _ in range(2))
        self.head = DecoupledHead(classes, (8, 8, 8), 8, act="silu", depthwise=False)

    def forward(self, images: Tensor) -> RawOutputs:
        levels = [self.stem(images / 64 - 2)]
        for layer in self.deeper:
            levels.append(layer(levels[-1]))
        out: RawOutputs = self.head(tuple(levels))
        return out


def tiny_detector() -> TinyDetector:
    """Return a detector whose normalisations are no identities."""
    torch.manual_seed(2)
    model = TinyDetector()
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.uniform_(-0.2, 0.2)
                part.running_var.uniform_(0.02, 0.1)
        for layer in (*model.head.cls_preds, *model.head.obj_preds, *model.head.reg_preds):
            layer.weight.mul_(3)
    return model.eval()


class Branching(nn.Module):
    """Its way depends on the values; a trace knows the way of the example alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else -x
