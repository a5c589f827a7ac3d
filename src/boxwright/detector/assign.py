"""SimOTA: which grid cells learn which box, decided for the whole batch at once.

There is no loop over images. Cells that can't be chosen are left out first, so the pairwise costs are computed
for some hundreds of cells per image instead of thousands. The result is the same.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from boxwright.detector.points import Points, decode_boxes

Rule = Literal["current", "legacy"]
"""`current`: a cell may learn a box if it is within 1.5 strides of its centre. `legacy`: inside it, or within 2.5."""

_MOST_PER_BOX = 10
_RADIUS = {"current": 1.5, "legacy": 2.5}
_PENALTY = {"current": 1e6, "legacy": 1e5}


class Assignment(NamedTuple):
    """The cells that learn a box, P per image; rows that are not `positive` are padding."""

    anchor: Tensor  # (B, P) int64: row of the raw outputs
    positive: Tensor  # (B, P) bool
    truth: Tensor  # (B, P) int64: which box of the image
    iou: Tensor  # (B, P) fp32: overlap of the predicted box with that box


class Truths(NamedTuple):
    """The boxes of a batch, G per image; rows that are not `valid` are padding."""

    boxes: Tensor  # (B, G, 4): centre and size in pixels
    classes: Tensor  # (B, G) int64
    valid: Tensor  # (B, G) bool


@torch.no_grad()
def assign(
    boxes: Tensor,
    objectness: Tensor,
    classes: Tensor,
    truths: Truths,
    points: Points,
    *,
    size_hw: tuple[int, int],
    strides: Sequence[int],
    rule: Rule = "current",
    static: bool = False,
) -> Assignment:
    """Return which cells learn which box.

    Args:
        boxes: raw box outputs (B, A, 4).
        objectness: logits (B, A, 1).
        classes: logits (B, A, C).
        truths: the boxes to learn.
        points: the grid cells of the input.
        size_hw: size of the input.
        strides: the levels behind the rows.
        rule: which cells may learn a box, and at what penalty.
        static: use shapes that depend on the arguments' shapes alone and read nothing back to the host
            (for graph capture). Otherwise shapes follow the batch, at one host read here and one at the end.
    """
    per_box = 9 * len(strides) if rule == "current" else boxes.shape[1]
    mask = _candidate_mask(truths, size_hw, strides, rule)  # (B, A)
    limit = min(boxes.shape[1], per_box * truths.valid.shape[1])
    index, filled = _compact(mask, limit, static=static)  # (B, N)

    cell_boxes = decode_boxes(_rows(boxes, index).float(), Points(points.cell[index], points.stride[index]))
    iou = _pairwise_iou(truths.boxes, cell_boxes)  # (B, G, N)
    usable = truths.valid[:, :, None] & filled[:, None, :]
    iou = iou.masked_fill(~usable, 0.0)
    cost = _class_cost(_rows(classes, index), _rows(objectness, index), truths.classes)
    cost = cost - 3.0 * torch.log(iou + 1e-8)
    preferred = _preferred(truths.boxes, points.centre[index], points.stride[index], rule)
    cost = cost + _PENALTY[rule] * (~preferred)
    cost = cost.masked_fill(~usable, float("inf"))

    match = _cheapest(cost, _how_many(iou))  # (B, G, N) bool
    takers = match.sum(dim=1)
    # A cell that several boxes want goes to the cheapest of all boxes, even one that did not ask for it.
    truth = torch.where(takers > 1, cost.argmin(dim=1), match.to(torch.uint8).argmax(dim=1))  # (B, N)
    positive, kept = _compact(takers > 0, min(index.shape[1], _MOST_PER_BOX * cost.shape[1]), static=static)
    chosen = truth.gather(1, positive)
    return Assignment(
        anchor=index.gather(1, positive),
        positive=kept,
        truth=chosen,
        iou=iou.gather(1, truth[:, None, :]).squeeze(1).gather(1, positive),
    )


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Return `values[b, index[b, n]]` of a (B, A, C) tensor as (B, N, C)."""
    batch = torch.arange(values.shape[0], device=values.device)[:, None]
    return values[batch, index]


def _candidate_mask(truths: Truths, size_hw: tuple[int, int], strides: Sequence[int], rule: Rule) -> Tensor:
    """Return which cells lie near (or, for the legacy rule, in) any box of their image, (B, A) bool.

    Being near is a condition on the column and one on the row. Each is small, and a matrix product of the two
    counts for every cell the boxes that it is near to.
    """
    levels = []
    for stride in strides:
        near = _near_on_level(truths, size_hw, stride, _RADIUS[rule] * stride)
        if rule == "legacy":
            near = near | _near_on_level(truths, size_hw, stride, None)
        levels.append(near.flatten(1))
    return torch.cat(levels, dim=1)


def _near_on_level(truths: Truths, size_hw: tuple[int, int], stride: int, radius: float | None) -> Tensor:
    """Return which cells of a level are within `radius` of a box's centre, or without one inside a box, (B, H, W)."""
    sides = []
    for axis, length in ((0, size_hw[1]), (1, size_hw[0])):
        centre = (torch.arange(length // stride, device=truths.boxes.device) + 0.5) * stride
        middle = truths.boxes[..., axis, None]
        reach = truths.boxes[..., 2 + axis, None] / 2 if radius is None else radius
        inside = (centre - (middle - reach) > 0) & ((middle + reach) - centre > 0)
        sides.append((inside & truths.valid[..., None]).float())  # (B, G, length)
    columns, rows = sides
    return torch.einsum("bgy,bgx->byx", rows, columns) > 0.5


def _preferred(boxes: Tensor, centre: Tensor, stride: Tensor, rule: Rule) -> Tensor:
    """Return where a cell lies in a box's own region, (B, G, N) bool."""
    reach = _RADIUS[rule] * stride.squeeze(-1)[:, None, :]
    regions = [(reach, reach)]
    if rule == "legacy":
        regions.append((boxes[..., 2, None] / 2, boxes[..., 3, None] / 2))
    preferred: Tensor | None = None
    for reaches in regions:
        for axis in (0, 1):
            at, middle = centre[:, None, :, axis], boxes[:, :, None, axis]
            inside = (at - (middle - reaches[axis]) > 0) & ((middle + reaches[axis]) - at > 0)
            preferred = inside if preferred is None else preferred & inside
    assert preferred is not None
    return preferred


def _pairwise_iou(truth: Tensor, predicted: Tensor) -> Tensor:
    """Return overlaps of (B, G, 4) and (B, N, 4) boxes given by centre and size, (B, G, N)."""
    both: Tensor | None = None
    for axis in (0, 1):
        t_half, p_half = truth[..., 2 + axis] / 2, predicted[..., 2 + axis] / 2
        low = torch.maximum((truth[..., axis] - t_half)[:, :, None], (predicted[..., axis] - p_half)[:, None, :])
        high = torch.minimum((truth[..., axis] + t_half)[:, :, None], (predicted[..., axis] + p_half)[:, None, :])
        side = (high - low).clamp_(min=0)
        both = side if both is None else both.mul_(side)
    assert both is not None
    areas = (truth[..., 2] * truth[..., 3])[:, :, None] + (predicted[..., 2] * predicted[..., 3])[:, None, :]
    return both / (areas - both).clamp(min=1e-16)


def _class_cost(classes: Tensor, objectness: Tensor, wanted: Tensor) -> Tensor:
    """Return the binary cross entropy of each cell's scores with each box's one-hot class, (B, G, N).

    The sum over classes is the same for every box of an image but for one term, so it is computed once per cell.
    """
    score = (classes.float().sigmoid() * objectness.float().sigmoid()).sqrt()  # (B, N, C)
    none = -torch.log1p(-score).clamp(min=-100).sum(dim=2)  # (B, N): cost if no class were wanted
    index = wanted[:, :, None].expand(-1, -1, score.shape[1])
    own = score.transpose(1, 2).gather(1, index)  # (B, G, N)
    return none[:, None, :] + torch.log1p(-own).clamp(min=-100) - torch.log(own).clamp(min=-100)


def _how_many(iou: Tensor) -> Tensor:
    """Return how many cells each box takes: the sum of its ten best overlaps, at least 1, (B, G)."""
    best = iou.topk(min(_MOST_PER_BOX, iou.shape[2]), dim=2).values
    return best.sum(dim=2).int().clamp(min=1)


def _cheapest(cost: Tensor, count: Tensor) -> Tensor:
    """Return the `count` cheapest cells of each box, (B, G, N) bool."""
    best, index = cost.topk(min(_MOST_PER_BOX, cost.shape[2]), dim=2, largest=False)
    taken = (torch.arange(best.shape[2], device=cost.device) < count[..., None]) & best.isfinite()
    return torch.zeros_like(cost, dtype=torch.bool).scatter_(2, index, taken)


def _compact(mask: Tensor, limit: int, *, static: bool) -> tuple[Tensor, Tensor]:
    """Return the positions of the True cells of each row, (B, n), and which of these are real.

    n is the largest count of a row, or `limit` (which no count may exceed) where shapes must be static.
    """
    count = mask.sum(dim=1)
    width = limit if static else max(int(count.max()), 1)
    if width == mask.shape[1]:
        return torch.arange(width, device=mask.device).expand_as(mask), mask
    # Cells that are out go to one slot past the end.
    slot = torch.where(mask, mask.cumsum(dim=1) - 1, width).clamp(max=width)
    index = torch.zeros(mask.shape[0], width + 1, dtype=torch.int64, device=mask.device)
    index.scatter_(1, slot, torch.arange(mask.shape[1], device=mask.device).expand_as(slot))
    return index[:, :width], torch.arange(width, device=mask.device) < count[:, None]
