"""The batched assignment equals a plain one that goes image by image, box by box."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from boxwright.detector.assign import Rule, Truths, assign
from boxwright.detector.points import Points, decode_boxes, make_points

STRIDES = (8, 16, 32)


def plain_assign(
    boxes: Tensor, objectness: Tensor, classes: Tensor, truth: Tensor, truth_classes: Tensor, points: Points, rule: Rule
) -> tuple[dict[int, tuple[int, float]], bool]:
    """Return {anchor: (box, IoU)} for one image, written straight from the description of the algorithm.

    Also return whether the result is clear. Costs with the penalty are near 1e5 or 1e6, where fp32 has steps of 0.01 to
    0.06: which of two nearly equal ones is the cheaper is then a matter of rounding, in any implementation.
    """
    if len(truth) == 0:
        return {}, True
    centre = points.centre
    radius = (1.5 if rule == "current" else 2.5) * points.stride[:, 0]
    distance = (centre[None] - truth[:, None, :2]).abs()  # (G, A, 2)
    near = (distance < radius[None, :, None]).all(2)
    inside = (distance < truth[:, None, 2:] / 2).all(2)
    region = near if rule == "current" else near | inside
    preferred = near if rule == "current" else near & inside
    candidates = region.any(0).nonzero()[:, 0]
    if len(candidates) == 0:
        return {}, True
    decoded = decode_boxes(boxes, points)[candidates]
    low = torch.maximum(truth[:, None, :2] - truth[:, None, 2:] / 2, decoded[None, :, :2] - decoded[None, :, 2:] / 2)
    high = torch.minimum(truth[:, None, :2] + truth[:, None, 2:] / 2, decoded[None, :, :2] + decoded[None, :, 2:] / 2)
    both = (high - low).clamp(min=0).prod(2)
    iou = both / (truth[:, 2:].prod(1)[:, None] + decoded[:, 2:].prod(1)[None] - both)
    score = (classes[candidates].sigmoid() * objectness[candidates].sigmoid()).sqrt()
    one_hot = F.one_hot(truth_classes, classes.shape[1]).float()
    pairs = score[None].expand(len(truth), -1, -1)
    class_cost = F.binary_cross_entropy(pairs, one_hot[:, None].expand_as(pairs), reduction="none").sum(2)
    penalty = 1e6 if rule == "current" else 1e5
    cost = class_cost - 3 * torch.log(iou + 1e-8) + penalty * (~preferred[:, candidates])
    matching = torch.zeros_like(cost)
    clear = True
    for g in range(len(truth)):
        best = iou[g].topk(min(10, len(candidates))).values
        count = max(int(best.sum()), 1)
        ordered = cost[g].sort().values
        clear &= count >= len(ordered) or bool(ordered[count] - ordered[count - 1] > 0.2)
        clear &= abs(float(best.sum()) - round(float(best.sum()))) > 1e-4
        matching[g, cost[g].topk(min(count, len(candidates)), largest=False).indices] = 1
    for n in (matching.sum(0) > 1).nonzero()[:, 0]:
        ordered = cost[:, n].sort().values
        clear &= bool(ordered[1] - ordered[0] > 0.2)
        matching[:, n] = 0
        matching[cost[:, n].argmin(), n] = 1
    found = {
        int(candidates[n]): (int(matching[:, n].argmax()), float(iou[matching[:, n].argmax(), n]))
        for n in matching.sum(0).nonzero()[:, 0]
    }
    return found, clear


def random_case(seed: int, batch: int, most: int, classes: int, size_hw: tuple[int, int]) -> tuple[Tensor, ...]:
    rng = torch.Generator().manual_seed(seed)
    points = make_points(size_hw, STRIDES)
    anchors = len(points.stride)
    boxes = torch.randn(batch, anchors, 4, generator=rng)
    objectness = torch.randn(batch, anchors, 1, generator=rng) * 3
    logits = torch.randn(batch, anchors, classes, generator=rng) * 3
    scale = torch.tensor([size_hw[1], size_hw[0]] * 2)
    truth = torch.rand(batch, most, 4, generator=rng) * scale
    # Centres may lie outside the image, sizes from tiny to all of it; each image has its own number of boxes.
    truth[..., :2] = (truth[..., :2] - scale[:2] / 2) * 1.2 + scale[:2] / 2
    truth[..., 2:] = truth[..., 2:].clamp(min=1)
    valid = torch.arange(most) < torch.randint(0, most + 1, (batch, 1), generator=rng)
    truth_classes = torch.randint(0, classes, (batch, most), generator=rng)
    return boxes, objectness, logits, truth, truth_classes, valid


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**31),
    batch=st.integers(1, 4),
    most=st.integers(1, 12),
    classes=st.integers(1, 6),
    size_hw=st.sampled_from([(64, 64), (96, 128), (160, 64)]),
    rule=st.sampled_from(["current", "legacy"]),
    static=st.booleans(),
)
def test_the_batch_gives_what_image_by_image_gives(
    seed: int, batch: int, most: int, classes: int, size_hw: tuple[int, int], rule: Rule, static: bool
) -> None:
    boxes, objectness, logits, truth, truth_classes, valid = random_case(seed, batch, most, classes, size_hw)
    points = make_points(size_hw, STRIDES)
    found = assign(
        boxes, objectness, logits, Truths(truth * valid[..., None], truth_classes * valid, valid), points,
        size_hw=size_hw, strides=STRIDES, rule=rule, static=static,
    )  # fmt: skip
    compared: list[int] = []
    for b in range(batch):
        count = int(valid[b].sum())
        expected, clear = plain_assign(
            boxes[b], objectness[b], logits[b], truth[b, :count], truth_classes[b, :count], points, rule
        )
        if not clear:
            continue
        compared.append(b)
        keep = found.positive[b]
        got = {
            int(a): (int(t), float(i))
            for a, t, i in zip(found.anchor[b][keep], found.truth[b][keep], found.iou[b][keep], strict=True)
        }
        assert got.keys() == expected.keys()
        assert {a: t for a, (t, _) in got.items()} == {a: t for a, (t, _) in expected.items()}
        assert [got[a][1] for a in expected] == pytest.approx([i for _, i in expected.values()], abs=1e-5)
    assume(compared)


def test_a_batch_without_any_box_has_no_positives() -> None:
    points = make_points((64, 64), STRIDES)
    anchors = len(points.stride)
    truths = Truths(torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.bool))
    for static in (False, True):
        found = assign(
            torch.zeros(2, anchors, 4), torch.zeros(2, anchors, 1), torch.zeros(2, anchors, 5), truths, points,
            size_hw=(64, 64), strides=STRIDES, static=static,
        )  # fmt: skip
        assert not found.positive.any()


def test_static_shapes_do_not_depend_on_the_boxes() -> None:
    points = make_points((64, 64), STRIDES)
    shapes = set()
    for seed in range(3):
        boxes, objectness, logits, truth, truth_classes, valid = random_case(seed, 2, 4, 3, (64, 64))
        found = assign(
            boxes, objectness, logits, Truths(truth, truth_classes, valid), points,
            size_hw=(64, 64), strides=STRIDES, static=True,
        )  # fmt: skip
        shapes.add(tuple(found.anchor.shape))
    assert len(shapes) == 1


def test_points_agree_with_the_torch_free_grid() -> None:
    from boxwright.detector.postprocess import anchor_grid

    points = make_points((96, 160), STRIDES)
    grid, stride = anchor_grid((96, 160), STRIDES)
    assert np.array_equal(points.cell.numpy(), grid)
    assert np.array_equal(points.stride.numpy(), stride)
