"""The YOLOX losses of a batch, in fp32 whatever the autocast mode."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from boxwright.core.errors import UsageError
from boxwright.detector.assign import Assignment, Rule, Truths, assign
from boxwright.detector.head import RawOutputs
from boxwright.detector.points import Points, decode_boxes, make_points

_IOU_WEIGHT = 5.0


class Losses(NamedTuple):
    """The loss and its parts, each divided by the number of positives; scalars that stay on their device."""

    total: Tensor
    iou: Tensor  # already weighted by 5
    objectness: Tensor
    classes: Tensor
    l1: Tensor
    positives: Tensor  # number of cells that learn a box
    truths: Tensor  # how many boxes there are


def yolox_loss(
    raw: RawOutputs,
    targets: Tensor,
    size_hw: tuple[int, int],
    *,
    strides: Sequence[int] = (8, 16, 32),
    l1: bool = False,
    rule: Rule = "current",
    static: bool = False,
    class_weights: Tensor | None = None,
) -> Losses:
    """Return the losses of a batch.

    Args:
        raw: the network's outputs for B images.
        targets: (B, G, 5): class, centre x, centre y, width, height in pixels; rows without width are padding.
        size_hw: size of the network's input.
        strides: the levels behind the rows of `raw`.
        l1: add the L1 distance of the raw boxes (the last phase of training).
        rule: the assignment rule.
        static: shapes depend on the arguments' shapes alone, nothing is read back to the host.
        class_weights: (C,), the weight of each class in the class loss; None for 1 each.

    Raises:
        UsageError: the shapes don't belong together.
    """
    points = make_points(size_hw, strides, raw.boxes.device)
    if raw.boxes.shape[1] != len(points.stride):
        raise UsageError(
            f"The outputs have {raw.boxes.shape[1]} rows, but size_hw={size_hw!r} has {len(points.stride)} cells."
        )
    if targets.ndim != 3 or targets.shape[0] != raw.boxes.shape[0] or targets.shape[2] != 5:
        raise UsageError(f"targets must have shape ({raw.boxes.shape[0]}, G, 5), not {tuple(targets.shape)!r}.")
    with torch.autocast(raw.boxes.device.type, enabled=False):
        truths = _split_targets(targets.float(), static=static)
        assignment = assign(*raw, truths, points, size_hw=size_hw, strides=strides, rule=rule, static=static)
        return _losses(raw, truths, assignment, points, l1=l1, class_weights=class_weights)


def _split_targets(targets: Tensor, *, static: bool) -> Truths:
    valid = (targets[..., 3] > 0) & (targets[..., 4] > 0)
    if not static:  # leave out columns that are padding in every image
        used = max(int((valid * torch.arange(1, valid.shape[1] + 1, device=valid.device)).max()), 1)
        targets, valid = targets[:, :used], valid[:, :used]
    return Truths(targets[..., 1:], torch.where(valid, targets[..., 0], 0).long(), valid)


def _losses(
    raw: RawOutputs, truths: Truths, found: Assignment, points: Points, *, l1: bool, class_weights: Tensor | None
) -> Losses:
    positive = found.positive.float()  # (B, P)
    count = positive.sum()
    share = count.clamp(min=1).reciprocal()
    truth_boxes = truths.boxes.gather(1, found.truth[..., None].expand(-1, -1, 4))  # (B, P, 4)
    truth_classes = truths.classes.gather(1, found.truth)  # (B, P)

    own = Points(points.cell[found.anchor], points.stride[found.anchor])
    raw_boxes = _gather(raw.boxes, found.anchor).float()
    iou = _iou(decode_boxes(raw_boxes, own), truth_boxes)
    iou_loss = ((1 - iou.square()) * positive).sum() * share * _IOU_WEIGHT

    is_object = torch.zeros(raw.objectness.shape[:2], device=positive.device)
    is_object = is_object.scatter_add(1, found.anchor, positive)  # an anchor is positive at most once
    objectness = raw.objectness.squeeze(2).float()
    objectness_loss = F.binary_cross_entropy_with_logits(objectness, is_object, reduction="sum") * share

    # Binary cross entropy with target iou·one-hot, without building the one-hot rows.
    logits = _gather(raw.classes, found.anchor).float()  # (B, P, C)
    own_logit = logits.gather(2, truth_classes[..., None]).squeeze(2)
    each = F.softplus(logits).sum(dim=2) - own_logit * found.iou
    if class_weights is not None:
        each = each * class_weights[truth_classes]
    class_loss = (each * positive).sum() * share

    l1_loss = torch.zeros((), device=positive.device)
    if l1:
        aim = torch.cat(
            (truth_boxes[..., :2] / own.stride - own.cell, torch.log(truth_boxes[..., 2:] / own.stride + 1e-8)), dim=2
        )
        distance = (raw_boxes - aim).abs().sum(dim=2)
        l1_loss = torch.where(found.positive, distance, 0.0).sum() * share
    total = iou_loss + objectness_loss + class_loss + l1_loss
    return Losses(total, iou_loss, objectness_loss, class_loss, l1_loss, count, truths.valid.sum())


def _gather(values: Tensor, index: Tensor) -> Tensor:
    """Return `values[b, index[b, p]]`, (B, P, C), by one flat row lookup (cheap backward)."""
    batch, rows, channels = values.shape
    flat = index + torch.arange(batch, device=index.device)[:, None] * rows
    return values.reshape(batch * rows, channels).index_select(0, flat.flatten()).view(batch, -1, channels)


def _iou(a: Tensor, b: Tensor) -> Tensor:
    """Return overlaps of boxes given by centre and size, pair by pair."""
    low = torch.maximum(a[..., :2] - a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2)
    high = torch.minimum(a[..., :2] + a[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2)
    side = (high - low).clamp(min=0)
    # Not prod(): its backward pass looks for zeros, which makes the host wait for the device.
    both = side[..., 0] * side[..., 1]
    union = a[..., 2] * a[..., 3] + b[..., 2] * b[..., 3] - both
    return both / (union + 1e-16)
