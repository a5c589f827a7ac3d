"""Models that are no detectors: several inputs, keywords, nested outputs."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


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
