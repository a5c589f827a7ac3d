"""A model for whole searches among the planted runtimes."""

from torch import Tensor, nn


class Doubling(nn.Module):
    """Gives twice its input, as the graphs of the planted runtimes do."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2
