"""The training step on a GPU: no wait for it, capture as a CUDA graph, precisions that are what they say."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from boxwright.accel.averages import WeightAverage
from boxwright.accel.nano import TorchNano
from boxwright.core.types import Precision
from boxwright.detector.loss import yolox_loss
from boxwright.detector.yolox import build
from boxwright.devices.cuda import CudaDevice
from boxwright.devices.options import DeviceOptions

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device (make test-cuda)"),
]
SIZE_HW = (128, 128)


@pytest.fixture
def no_waiting() -> Iterator[Callable[[bool], None]]:
    """Make every wait of the host for the GPU an error, once switched on."""

    def switch(on: bool) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it does not see every kind of wait
            torch.cuda.set_sync_debug_mode("error" if on else "default")

    yield switch
    switch(False)


def make_batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(4, 3, *SIZE_HW, generator=generator) * 255
    targets = torch.zeros(4, 16, 5)
    targets[:, :5, 0] = torch.randint(0, 3, (4, 5), generator=generator).float()
    targets[:, :5, 1:3] = torch.rand(4, 5, 2, generator=generator) * 128
    targets[:, :5, 3:] = 10 + torch.rand(4, 5, 2, generator=generator) * 60
    return images, targets


@pytest.mark.parametrize("precision", [32, "bf16"])
def test_the_host_never_waits_in_a_step(precision: str | int, no_waiting: Callable[[bool], None]) -> None:
    def train(nano: TorchNano) -> float:
        torch.manual_seed(0)
        model = build("yolox_nano", 3).to(nano.device)
        average = WeightAverage(model, move=nano.hardware.average)
        optimizer = nano.hardware.make_sgd(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True)
        running, optimizer = nano.setup(model, optimizer)
        running.train()
        feed = nano.hardware.feed([make_batch(seed) for seed in range(6)], nano.device)
        losses = []
        for number, (images, targets) in enumerate(feed):
            no_waiting(number >= 2)  # the first steps choose kernels and allocate
            step = yolox_loss(running(images), targets, SIZE_HW, static=True, l1=True)
            nano.backward(step.total)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            average.update(model)
            no_waiting(False)
            losses.append(step.total.detach())
        return float(torch.stack(losses).mean())

    nano = TorchNano(num_processes=1, device="cuda", precision=precision, channels_last=True)
    assert 0 < nano.launch(train) < 1000


def test_the_step_is_captured_as_a_cuda_graph_and_serves_new_data() -> None:
    torch.manual_seed(0)
    model = build("yolox_nano", 3).cuda().train()
    images, targets = (part.cuda() for part in make_batch(0))

    def step() -> list[Tensor]:
        found = yolox_loss(model(images), targets, SIZE_HW, static=True, l1=True)
        found.total.backward()
        # Without their history: it would tie later gradients to the stream of this step.
        return [value.detach() for value in found]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            step()
    torch.cuda.current_stream().wait_stream(side)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    gradients = [parameter.grad for parameter in model.parameters()]
    for seed in (1, 2):
        model.load_state_dict(state)
        for target, source in zip((images, targets), make_batch(seed), strict=True):
            target.copy_(source)
        graph.replay()
        torch.cuda.synchronize()
        found = [value.item() for value in captured]
        replayed = [gradient.clone() for gradient in gradients if gradient is not None]
        model.load_state_dict(state)
        for parameter in model.parameters():
            parameter.grad = None
        expected = [value.item() for value in step()]
        assert found == pytest.approx(expected, rel=1e-4)
        for ours, parameter in zip(replayed, model.parameters(), strict=True):
            assert parameter.grad is not None
            scale = parameter.grad.abs().max().clamp(min=1e-3)
            assert ((ours - parameter.grad).abs().max() / scale).item() < 0.05
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient


def test_precision_32_does_not_use_tf32() -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(256, 256, 3, padding=1, bias=False).cuda()
    images = torch.randn(4, 256, 32, 32, device="cuda")
    exact = convolution.double()(images.double())
    convolution.float()
    with CudaDevice().working(Precision.FP32):
        ours = convolution(images)
        product = images.flatten(2)[0] @ images.flatten(2)[0].T
    error = ((ours.double() - exact).abs().max() / exact.abs().max()).item()
    assert error < 3e-5  # TF32 keeps 10 bits: some 1e-4 here
    twice = images.flatten(2)[0].double()
    assert ((product.double() - twice @ twice.T).abs().max() / (twice @ twice.T).abs().max()).item() < 3e-5


def test_only_fp16_has_a_scaler_and_it_skips_bad_steps() -> None:
    def train(nano: TorchNano) -> tuple[float, float]:
        model = nn.Linear(4, 1)
        model, optimizer = nano.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        before = model.weight.detach().clone()
        nano.backward(model(torch.full((2, 4), 1e30, device=nano.device)).sum())
        optimizer.step()
        return float((model.weight.detach() - before).abs().max()), nano.scaler_state()["scale"]

    moved, scale = TorchNano(num_processes=1, device="cuda", precision=16).launch(train)
    assert moved == 0.0
    assert scale == 32768.0


@pytest.mark.filterwarnings("default")  # the compiler advises TF32
def test_compiled_parts_learn_the_same() -> None:
    def train(nano: TorchNano) -> list[float]:
        torch.manual_seed(0)
        model = build("yolox_nano", 3).to(nano.device)
        optimizer = nano.hardware.make_sgd(model.parameters(), lr=1e-5, momentum=0.9, nesterov=True)
        model, optimizer = nano.setup(model, optimizer)
        loss: Any = nano.hardware.compile(yolox_loss)
        losses = []
        for images, targets in nano.hardware.feed([make_batch(seed) for seed in range(3)], nano.device):
            step = loss(model(images), targets, SIZE_HW, static=True)
            nano.backward(step.total)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(step.total.detach())
        return [float(value) for value in losses]

    plain = TorchNano(num_processes=1, device="cuda").launch(train)
    compiled = TorchNano(num_processes=1, device="cuda", device_options=DeviceOptions(compile=True))
    assert compiled.hardware.static_shapes
    assert compiled.launch(train) == pytest.approx(plain, rel=1e-3)
