"""The training step as graph capture and tracing see it: one graph, no host read, the same graph for new data."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from boxwright.core.types import Precision
from boxwright.detector.head import RawOutputs
from boxwright.detector.loss import Losses, yolox_loss
from boxwright.detector.yolox import build
from boxwright.devices.cpu import CpuDevice

SIZE_HW = (64, 64)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make_batch(seed: int, boxes: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(2, 3, *SIZE_HW, generator=generator) * 255
    targets = torch.zeros(2, boxes, 5)
    used = 1 + seed % boxes
    targets[:, :used, 0] = torch.randint(0, 3, (2, used), generator=generator).float()
    targets[:, :used, 1:3] = torch.rand(2, used, 2, generator=generator) * 64
    targets[:, :used, 3:] = 8 + torch.rand(2, used, 2, generator=generator) * 30
    return images, targets


def test_a_whole_step_is_traced_without_data() -> None:
    hardware = CpuDevice()
    with FakeTensorMode():
        model, averaged = build("yolox_nano", 3), build("yolox_nano", 3)
        optimizer = hardware.make_sgd(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
        for l1 in (False, True):
            images, targets = torch.empty(2, 3, *SIZE_HW), torch.empty(2, 120, 5)
            with hardware.autocast(Precision.BF16):
                raw = model(images)
            losses = yolox_loss(raw, targets, SIZE_HW, l1=l1, static=True)
            losses.total.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                hardware.average(list(averaged.parameters()), list(model.parameters()), 0.9)
            assert losses.total.shape == ()
        # The other rule, for the CPU, looks at the data: tracing must notice.
        with pytest.raises(DataDependentOutputException):
            yolox_loss(raw, targets, SIZE_HW)


def test_network_assignment_and_loss_are_one_graph_that_serves_all_data() -> None:
    torch.manual_seed(0)
    model = build("yolox_nano", 3)

    def step(images: Tensor, targets: Tensor) -> Losses:
        return yolox_loss(model(images), targets, SIZE_HW, static=True, l1=True)

    compiled = torch.compile(step, fullgraph=True, dynamic=False, backend="eager")
    twin = copy.deepcopy(model)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in range(3):
            images, targets = make_batch(seed)
            expected = yolox_loss(twin(images), targets, SIZE_HW, l1=True)
            assert [v.item() for v in compiled(images, targets)] == pytest.approx(
                [v.item() for v in expected], rel=1e-4
            )


def test_gradients_of_the_captured_loss_are_those_of_the_eager_one() -> None:
    model = build("yolox_nano", 3)
    compiled = torch.compile(yolox_loss, fullgraph=True, dynamic=False, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in range(2):
            images, targets = make_batch(seed)
            with torch.no_grad():
                raw = model(images)
            ours, theirs = (RawOutputs(*(part.clone().requires_grad_() for part in raw)) for _ in range(2))
            compiled(ours, targets, SIZE_HW, static=True, l1=True).total.backward()
            yolox_loss(theirs, targets, SIZE_HW, l1=True).total.backward()
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
