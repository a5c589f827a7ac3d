"""The grid cells behind the rows of the raw outputs, and decoding in torch."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Points(NamedTuple):
    """Where each of the A rows of the raw outputs sits; stride 8 first, then row by row."""

    cell: Tensor  # (A, 2): column and row of the cell
    stride: Tensor  # (A, 1)

    @property
    def centre(self) -> Tensor:
        """The cells' centres in pixels, (A, 2)."""
        return (self.cell + 0.5) * self.stride


def make_points(
    size_hw: tuple[int, int], strides: Sequence[int] = (8, 16, 32), device: torch.device | str | None = None
) -> Points:
    """Return the grid cells of an input of `size_hw`, as fp32 tensors."""
    cells, steps = [], []
    for stride in strides:
        rows, columns = size_hw[0] // stride, size_hw[1] // stride
        y = torch.arange(rows, device=device, dtype=torch.float32)
        x = torch.arange(columns, device=device, dtype=torch.float32)
        cells.append(torch.stack((x.repeat(rows), y.repeat_interleave(columns)), dim=1))
        steps.append(torch.full((rows * columns, 1), float(stride), device=device))
    return Points(torch.cat(cells), torch.cat(steps))


def decode_boxes(boxes: Tensor, points: Points) -> Tensor:
    """Return centre and size in pixels of raw box outputs (..., A, 4)."""
    centre = (boxes[..., :2] + points.cell) * points.stride
    size = boxes[..., 2:].exp() * points.stride
    return torch.cat((centre, size), dim=-1)
