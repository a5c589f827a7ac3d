"""A GPU learns what a CPU learns: 20 steps from the same state, the same assignments and losses."""

from dataclasses import replace

import pytest
import torch
from support.shared import shared_path
from torch import Tensor

from boxwright.accel.schedule import WarmupCosine
from boxwright.core.types import Precision
from boxwright.data.dataset import DetectionDataset
from boxwright.data.loader import Loader
from boxwright.data.policy import policy_for
from boxwright.data.synthetic import generate_scenes
from boxwright.detector.assign import Truths, assign
from boxwright.detector.loss import yolox_loss
from boxwright.detector.points import make_points
from boxwright.detector.weights import load_weights, read_state
from boxwright.detector.yolox import build
from boxwright.devices.base import Device
from boxwright.devices.cpu import CpuDevice
from boxwright.devices.cuda import CudaDevice

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device (make test-cuda)"),
]
SIZE_HW = (320, 320)
STEPS = 20
Batches = list[tuple[Tensor, Tensor]]


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> Batches:
    records = generate_scenes(tmp_path_factory.mktemp("scenes"), images=80, seed=0, size_hw=SIZE_HW)
    dataset = DetectionDataset(records, SIZE_HW, policy=replace(policy_for("yolox_nano").no_aug(), multiscale=None))
    with Loader(dataset, batch_size=4, workers=1, max_boxes=32) as loader:
        return [(torch.from_numpy(b.images.copy()), torch.from_numpy(b.targets)) for b in loader][:STEPS]


class Learner:
    """A network with official weights, its optimizer and a device."""

    def __init__(self, device: Device) -> None:
        self.device, self.place = device, device.place(0)
        self.model = build("yolox_nano", 80)
        load_weights(self.model, read_state(shared_path("weights/yolox_nano/yolox_nano.pth"))[0])
        self.model.to(self.place).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        self.optimizer = device.make_sgd(self.model.parameters(), lr=0.0, momentum=0.9, nesterov=True)
        self.points = make_points(SIZE_HW, device=self.place)

    def take_step(self, batch: tuple[Tensor, Tensor], rate: float) -> tuple[list[float], set[tuple[int, int, int]]]:
        """Return the loss and its parts, and which cell of which image learns which box."""
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.zero_grad()
        with self.device.working(Precision.FP32):
            (pixels, targets), *_ = self.device.feed([batch], self.place)
            raw = self.model(pixels.permute(0, 3, 1, 2).float())
            truths = Truths(targets[..., 1:], targets[..., 0].long(), targets[..., 3] > 0)
            found = assign(*raw, truths, self.points, size_hw=SIZE_HW, strides=(8, 16, 32), static=True)
            losses = yolox_loss(raw, targets, SIZE_HW, static=True, l1=True)
            losses.total.backward()
            self.optimizer.step()
        image, row = found.positive.nonzero(as_tuple=True)
        anchor, truth = found.anchor[image, row], found.truth[image, row]
        pairs = set(zip(image.tolist(), anchor.tolist(), truth.tolist(), strict=True))
        return [float(value.detach()) for value in losses], pairs

    def become(self, other: "Learner") -> None:
        self.model.load_state_dict(other.model.state_dict())
        self.optimizer.load_state_dict(other.optimizer.state_dict())


def assert_same_steps(ours: Learner, theirs: Learner, batches: Batches) -> None:
    # The first steps of the recipe's warm-up. Each step starts from the same state on both: rounding grows tenfold a
    # step in a training network, so that two free runs would compare how errors grow, and not how they arise.
    curve = WarmupCosine(base_lr=0.01, total_steps=549_000, warmup_steps=9_150)
    for step, batch in enumerate(batches):
        found, pairs = ours.take_step(batch, curve(step + 1))
        expected, expected_pairs = theirs.take_step(batch, curve(step + 1))
        assert pairs == expected_pairs, f"step {step}"
        assert found[0] == pytest.approx(expected[0], rel=1e-5), f"step {step}"
        assert found == pytest.approx(expected, rel=5e-5), f"step {step}"
        for (name, a), b in zip(ours.model.named_parameters(), theirs.model.parameters(), strict=True):
            error = (a.detach().cpu() - b.detach()).abs().max() / b.detach().abs().max()
            assert error.item() < 1e-4, f"step {step}, {name}"
        ours.become(theirs)


def test_twenty_steps_give_the_assignments_and_losses_of_the_cpu(batches: Batches) -> None:
    assert len(batches) == STEPS
    assert_same_steps(Learner(CudaDevice()), Learner(CpuDevice()), batches)
