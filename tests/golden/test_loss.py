"""Assignment, losses and gradients equal what the reference training code gives."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.lib.npyio import NpzFile
from support.shared import shared_path

from boxwright.detector.assign import Assignment, Rule, Truths, assign
from boxwright.detector.head import RawOutputs
from boxwright.detector.loss import Losses, yolox_loss
from boxwright.detector.points import make_points
from boxwright.detector.weights import load_weights, read_state
from boxwright.detector.yolox import Yolox, build

CASES = ["l10_bn0", "l10_bn1", "l11_bn0", "l11_bn1"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    # Torch's channels-last batch-norm in training mode sums naively: its result moves by 1e-3 with the number of
    # threads. The reference was computed with one.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def load_batch() -> tuple[torch.Tensor, torch.Tensor]:
    golden = np.load(shared_path("golden/yolox_nano_forward.npz"))
    images = torch.from_numpy(golden["images_bgr_u8"]).permute(0, 3, 1, 2).float()
    return images, torch.from_numpy(golden["labels_cxcywh"])


def load_nano(*, training: bool) -> Yolox:
    model = build("yolox_nano")
    load_weights(model, read_state(shared_path("weights/yolox_nano/yolox_nano.pth"))[0])
    return model.train(training)


def run_assign(raw: RawOutputs, targets: torch.Tensor, size: int, rule: Rule, *, static: bool) -> Assignment:
    truths = Truths(targets[..., 1:], targets[..., 0].long(), targets[..., 3] > 0)
    points = make_points((size, size))
    return assign(
        *(t.detach() for t in raw), truths, points, size_hw=(size, size), strides=(8, 16, 32), rule=rule, static=static
    )


def by_image(found: Assignment, targets: torch.Tensor) -> list[tuple[np.ndarray, ...]]:
    """Return anchor, truth, IoU and class of the positives of each image, in the order of the anchors."""
    images = []
    for i in range(len(found.anchor)):
        keep = found.positive[i]
        anchor, truth, iou = found.anchor[i][keep], found.truth[i][keep], found.iou[i][keep]
        order = anchor.argsort()
        images.append(tuple(t[order].numpy() for t in (anchor, truth, iou, targets[i, truth, 0])))
    return images


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_each_image_gets_the_same_anchors_boxes_and_classes(case: str, static: bool) -> None:
    golden = np.load(shared_path(f"golden/yolox_nano_train_{case}.npz"))
    images, targets = load_batch()
    with torch.no_grad():
        raw = load_nano(training=case.endswith("bn1"))(images)
    positives = 0
    for i, (anchor, truth, iou, classes) in enumerate(
        by_image(run_assign(raw, targets, 416, "current", static=static), targets)
    ):
        if f"img{i}_fg_anchor_index" not in golden:
            assert len(anchor) == 0, "the last image has no box"
            continue
        assert anchor.tolist() == golden[f"img{i}_fg_anchor_index"].tolist()
        assert truth.tolist() == golden[f"img{i}_matched_gt"].tolist()
        assert classes.tolist() == golden[f"img{i}_matched_class"].tolist()
        assert np.abs(iou - golden[f"img{i}_matched_iou"]).max() < 1e-4
        positives += len(anchor)
    assert positives > 300


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_equal_the_reference(case: str, static: bool) -> None:
    golden = np.load(shared_path(f"golden/yolox_nano_train_{case}.npz"))
    expected = json.loads(shared_path("golden/reference_numbers.json").read_text())[case]
    images, targets = load_batch()
    model = load_nano(training=case.endswith("bn1"))
    losses = yolox_loss(model(images), targets, (416, 416), l1=case.startswith("l11"), static=static)
    losses.total.backward()
    check_losses(losses, [expected[k] for k in ("total_loss", "iou_loss", "conf_loss", "cls_loss", "l1_loss")])
    assert (losses.positives / losses.truths).item() == pytest.approx(expected["num_fg"], rel=1e-6)

    gradients = {name: p.grad for name, p in model.named_parameters()}
    norms = dict(zip(golden["gradnorm_names"].tolist(), golden["gradnorm_values"].tolist(), strict=True))
    assert norms.keys() == gradients.keys()
    assert {n: g.norm().item() for n, g in gradients.items()} == pytest.approx(norms, rel=1e-3)
    whole = [key for key in golden.files if key.startswith("grad_")]
    assert len(whole) == 18
    for key in whole:
        np.testing.assert_allclose(gradients[key.removeprefix("grad_")].numpy(), golden[key], rtol=1e-3, atol=1e-5)


def check_losses(losses: Losses, expected: list[float]) -> None:
    assert [v.item() for v in losses[:5]] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("rule", ["current", "legacy"])
def test_both_assignment_rules_equal_the_reference(rule: Rule, static: bool) -> None:
    golden: NpzFile = np.load(shared_path(f"golden/simota_{rule}.npz"))
    levels = [torch.from_numpy(golden[f"raw{i}"]).requires_grad_() for i in range(3)]
    joined = torch.cat([level.flatten(2) for level in levels], dim=2).permute(0, 2, 1)
    raw = RawOutputs(joined[..., :4], joined[..., 4:5], joined[..., 5:])
    targets = torch.from_numpy(golden["labels"])

    images = by_image(run_assign(raw, targets, 128, rule, static=static), targets)
    for i in (0, 1):
        anchor, truth, iou, classes = images[i]
        assert anchor.tolist() == golden[f"img{i}_fg_index"].tolist()
        assert truth.tolist() == golden[f"img{i}_matched_gt"].tolist()
        assert classes.tolist() == golden[f"img{i}_cls"].tolist()
        assert np.abs(iou - golden[f"img{i}_iou"]).max() < 1e-5
    assert len(images[2][0]) == 0

    losses = yolox_loss(raw, targets, (128, 128), l1=True, rule=rule, static=static)
    losses.total.backward()
    *expected, per_box = golden["losses_total_iou5_obj_cls_l1_numfg"].tolist()
    check_losses(losses, expected)
    assert (losses.positives / losses.truths).item() == pytest.approx(per_box)
    for i, level in enumerate(levels):
        assert level.grad is not None
        assert np.abs(level.grad.numpy() - golden[f"grad_raw{i}"]).max() < 1e-5
