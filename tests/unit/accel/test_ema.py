import torch

from boxwright.accel.averages import WeightAverage
from boxwright.accel.schedule import ema_decay
from boxwright.detector.yolox import build


def test_every_tensor_of_the_average_moves_and_equals_its_formula() -> None:
    torch.manual_seed(0)
    model = build("yolox_nano", 2)
    average = WeightAverage(model, base=0.99, ramp=5)
    expected = {k: v.clone().double() for k, v in model.state_dict().items()}
    start = {k: v.clone() for k, v in model.state_dict().items()}
    for step in (1, 2, 3):
        with torch.no_grad():
            for value in model.state_dict().values():
                value.add_(1 if value.dtype == torch.int64 else torch.randn_like(value))
        average.update(model)
        decay = ema_decay(step, base=0.99, ramp=5)
        for key, value in model.state_dict().items():
            if value.is_floating_point():
                expected[key] = decay * expected[key] + (1 - decay) * value.double()
            else:
                expected[key] = value.clone().double()
    for key, value in average.model.state_dict().items():
        assert not torch.equal(value, start[key]), f"{key} did not move"
        torch.testing.assert_close(value.double(), expected[key], rtol=1e-5, atol=1e-6)


def test_the_average_does_not_share_memory_with_the_model() -> None:
    model = build("yolox_nano", 1)
    average = WeightAverage(model)
    pointers = {v.data_ptr() for v in model.state_dict().values()}
    assert not pointers & {v.data_ptr() for v in average.model.state_dict().values()}


def test_the_average_of_a_small_format_is_kept_in_fp32_and_moves() -> None:
    model = torch.nn.Linear(2, 2).to(torch.bfloat16)
    average = WeightAverage(model, base=0.9998, ramp=1.0)
    start = average.model.weight.clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    average.update(model)
    decay = ema_decay(1, base=0.9998, ramp=1.0)
    assert average.model.weight.dtype == torch.float32
    assert torch.allclose(average.model.weight, decay * start + (1 - decay) * model.weight.float())
    average.steps = 100_000
    before = average.model.weight.clone()
    average.update(model)
    assert not torch.equal(average.model.weight, before)  # 0.0002 of the way
