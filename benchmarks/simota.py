"""python benchmarks/simota.py [--batch 16] [--rounds 20]

Assignment and loss of one batch, forward and backward: ours for the whole batch at once, against the same algorithm
image by image, written plainly here. Prints the ratio of the medians of one interleaved run.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor

from boxwright.core.timing import hardware_line
from boxwright.detector.head import RawOutputs
from boxwright.detector.loss import yolox_loss
from boxwright.detector.points import Points, decode_boxes, make_points
from turns import interleave

SIZE = (416, 416)


def pairwise_iou(a: Tensor, b: Tensor) -> Tensor:
    low = torch.maximum(a[:, None, :2] - a[:, None, 2:] / 2, b[None, :, :2] - b[None, :, 2:] / 2)
    high = torch.minimum(a[:, None, :2] + a[:, None, 2:] / 2, b[None, :, :2] + b[None, :, 2:] / 2)
    both = (high - low).clamp(min=0).prod(2)
    return both / (a[:, 2:].prod(1)[:, None] + b[:, 2:].prod(1)[None] - both)


@torch.no_grad()
def assign_image(
    decoded: Tensor, objectness: Tensor, classes: Tensor, truth: Tensor, truth_classes: Tensor, points: Points
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return positives (A,), their box, IoU and class: the published algorithm for one image."""
    distance = (points.centre[None] - truth[:, None, :2]).abs()
    region = (distance < 1.5 * points.stride[None]).all(2)  # (G, A)
    candidate = region.any(0)
    iou = pairwise_iou(truth, decoded[candidate])
    one_hot = F.one_hot(truth_classes, classes.shape[1]).float()[:, None].expand(-1, iou.shape[1], -1)
    score = (classes[candidate].sigmoid() * objectness[candidate].sigmoid()).sqrt()[None].expand(len(truth), -1, -1)
    class_cost = F.binary_cross_entropy(score, one_hot, reduction="none").sum(2)
    cost = class_cost - 3 * torch.log(iou + 1e-8) + 1e6 * (~region[:, candidate])
    matching = torch.zeros_like(cost, dtype=torch.uint8)
    counts = iou.topk(min(10, iou.shape[1]), dim=1).values.sum(1).int().clamp(min=1)
    for g in range(len(truth)):
        matching[g, cost[g].topk(int(counts[g]), largest=False).indices] = 1
    crowded = matching.sum(0) > 1
    if crowded.any():
        cheapest = cost[:, crowded].argmin(0)
        matching[:, crowded] = 0
        matching[cheapest, crowded] = 1
    chosen = matching.sum(0) > 0
    positive = candidate.clone()
    positive[candidate] = chosen
    box = matching[:, chosen].argmax(0)
    return positive, box, (matching * iou).sum(0)[chosen], truth_classes[box]


def plain_loss(raw: RawOutputs, targets: Tensor, size_hw: tuple[int, int] = SIZE) -> Tensor:
    """Return the loss with a loop over the images, as the public training code has it."""
    points = make_points(size_hw)
    decoded = decode_boxes(raw.boxes, points)
    positives, boxes, class_targets = [], [], []
    for i in range(len(targets)):
        truth = targets[i][targets[i, :, 3] > 0]
        if not len(truth):
            positives.append(torch.zeros(len(points.stride), dtype=torch.bool))
            continue
        positive, box, iou, classes = assign_image(
            decoded[i], raw.objectness[i], raw.classes[i], truth[:, 1:], truth[:, 0].long(), points
        )
        positives.append(positive)
        boxes.append(truth[box, 1:])
        class_targets.append(F.one_hot(classes, raw.classes.shape[2]) * iou[:, None])
    mask, aim, wanted = torch.cat(positives), torch.cat(boxes), torch.cat(class_targets)
    count = max(int(mask.sum()), 1)
    found = decoded.reshape(-1, 4)[mask]
    low = torch.maximum(found[:, :2] - found[:, 2:] / 2, aim[:, :2] - aim[:, 2:] / 2)
    high = torch.minimum(found[:, :2] + found[:, 2:] / 2, aim[:, :2] + aim[:, 2:] / 2)
    both = (high - low).clamp(min=0).prod(1)
    iou = both / (found[:, 2:].prod(1) + aim[:, 2:].prod(1) - both + 1e-16)
    objectness = F.binary_cross_entropy_with_logits(raw.objectness.reshape(-1), mask.float(), reduction="sum")
    logits = raw.classes.reshape(-1, raw.classes.shape[2])[mask]
    return (
        5 * (1 - iou**2).sum() + objectness + F.binary_cross_entropy_with_logits(logits, wanted, reduction="sum")
    ) / count


def make_batch(batch: int, boxes: int) -> tuple[RawOutputs, Tensor]:
    """Return outputs of a half-trained network (boxes near their cells) and `boxes` boxes an image, give or take."""
    rng = torch.Generator().manual_seed(0)
    anchors = len(make_points(SIZE).stride)
    raw = RawOutputs(
        (torch.randn(batch, anchors, 4, generator=rng) * 0.5 + torch.tensor([0.5, 0.5, 0.7, 0.7])).requires_grad_(),
        (torch.randn(batch, anchors, 1, generator=rng) - 4).requires_grad_(),
        (torch.randn(batch, anchors, 80, generator=rng) - 3).requires_grad_(),
    )
    targets = torch.zeros(batch, 120, 5)
    for i in range(batch):
        count = int(torch.randint(boxes // 2, boxes * 3 // 2 + 1, (1,), generator=rng))
        size = torch.exp(torch.rand(count, 2, generator=rng) * 3 + 2)
        targets[i, :count, 0] = torch.randint(0, 80, (count,), generator=rng).float()
        targets[i, :count, 1:3] = torch.rand(count, 2, generator=rng) * SIZE[0]
        targets[i, :count, 3:] = size.clamp(max=300)
    return raw, targets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--boxes", type=int, default=25, help="boxes an image on average")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    raw, targets = make_batch(args.batch, args.boxes)
    ours, plain = yolox_loss(raw, targets, SIZE).total.item(), plain_loss(raw, targets).item()
    if abs(ours / plain - 1) > 1e-4:
        raise SystemExit(f"The two disagree, nothing to compare: {ours} and {plain}")

    def step(loss: Tensor) -> None:
        for tensor in raw:
            tensor.grad = None
        loss.backward()

    times = interleave(
        {
            "image by image": lambda: step(plain_loss(raw, targets)),
            "whole batch": lambda: step(yolox_loss(raw, targets, SIZE).total),
            "whole batch, static": lambda: step(yolox_loss(raw, targets, SIZE, static=True).total),
        },
        args.rounds,
    )
    print(f"{hardware_line()}; torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"batch {args.batch}, about {args.boxes} boxes an image, 416x416, 80 classes; loss {ours:.4f} in both")
    for name, timing in times.items():
        print(f"{name:20} {timing}   {times.speedup('image by image', name):.2f}x")


if __name__ == "__main__":
    main()
