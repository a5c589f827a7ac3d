import pytest
import torch
from torch import Tensor

from boxwright.core.errors import UsageError
from boxwright.detector.head import RawOutputs
from boxwright.detector.loss import yolox_loss

ANCHORS = 8 * 8 + 4 * 4 + 2 * 2


def random_raw(batch: int = 2, classes: int = 3, seed: int = 0) -> RawOutputs:
    rng = torch.Generator().manual_seed(seed)
    return RawOutputs(*(torch.randn(batch, ANCHORS, n, generator=rng).requires_grad_() for n in (4, 1, classes)))


def two_boxes() -> Tensor:
    return torch.tensor([[[1.0, 20, 20, 16, 16], [2, 40, 40, 30, 20]], [[0, 32, 32, 20, 20], [0, 0, 0, 0, 0]]])


def test_images_without_boxes_still_teach_objectness() -> None:
    raw = random_raw()
    losses = yolox_loss(raw, torch.zeros(2, 4, 5), (64, 64), l1=True)
    losses.total.backward()
    assert losses.positives.item() == 0
    assert losses.objectness.item() > 0
    assert [losses.iou.item(), losses.classes.item(), losses.l1.item()] == [0, 0, 0]
    assert raw.objectness.grad is not None
    assert raw.objectness.grad.abs().sum() > 0
    assert all(t.grad is None or not t.grad.isnan().any() for t in raw)


def test_targets_without_any_row_are_allowed() -> None:
    losses = yolox_loss(random_raw(), torch.zeros(2, 1, 5), (64, 64))
    assert losses.truths.item() == 0


def test_padding_rows_change_nothing_whatever_their_class() -> None:
    raw = random_raw()
    padded = torch.cat((two_boxes(), torch.tensor([-1.0, 0, 0, 0, 0]).expand(2, 5, 5)), dim=1)
    for static in (False, True):
        plain = yolox_loss(raw, two_boxes(), (64, 64), l1=True, static=static)
        with_padding = yolox_loss(raw, padded, (64, 64), l1=True, static=static)
        torch.testing.assert_close(torch.stack(plain[:5]), torch.stack(with_padding[:5]))


def test_static_and_following_shapes_give_the_same_gradients() -> None:
    gradients = []
    for static in (False, True):
        raw = random_raw()
        yolox_loss(raw, two_boxes(), (64, 64), l1=True, static=static).total.backward()
        gradients.append([t.grad for t in raw])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_the_loss_is_fp32_under_autocast() -> None:
    raw = random_raw()
    expected = yolox_loss(raw, two_boxes(), (64, 64))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = yolox_loss(raw, two_boxes(), (64, 64))
    assert inside.total.dtype == torch.float32
    assert inside.total.item() == expected.total.item()


def test_bf16_outputs_are_taken_and_the_loss_is_fp32() -> None:
    raw = RawOutputs(*(t.detach().bfloat16().requires_grad_() for t in random_raw()))
    losses = yolox_loss(raw, two_boxes(), (64, 64), l1=True)
    losses.total.backward()
    assert losses.total.dtype == torch.float32
    assert raw.boxes.grad is not None
    assert raw.boxes.grad.dtype == torch.bfloat16


def test_l1_sends_a_gradient_to_the_boxes() -> None:
    gradients = []
    for l1 in (False, True):
        raw = random_raw()
        yolox_loss(raw, two_boxes(), (64, 64), l1=l1).total.backward()
        gradients.append(raw.boxes.grad)
    assert not torch.equal(gradients[0], gradients[1])


@pytest.mark.parametrize("shape", [(2, 5), (3, 2, 5), (2, 2, 4)])
def test_targets_of_a_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"targets must have shape \(2, G, 5\)"):
        yolox_loss(random_raw(), torch.zeros(shape), (64, 64))


def test_outputs_of_another_input_size_are_refused() -> None:
    with pytest.raises(UsageError, match="84 rows"):
        yolox_loss(random_raw(), two_boxes(), (96, 96))


def test_the_whole_loss_captures_as_one_graph() -> None:
    def step(boxes: Tensor, objectness: Tensor, classes: Tensor, targets: Tensor) -> Tensor:
        return yolox_loss(RawOutputs(boxes, objectness, classes), targets, (64, 64), l1=True, static=True).total

    raw = random_raw()
    captured = torch.compile(step, fullgraph=True, backend="eager")
    assert captured(*raw, two_boxes()).item() == pytest.approx(step(*raw, two_boxes()).item(), rel=1e-6)
