"""What a bf16 conversion does to a model beside rounding it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.models import tiny_detector
from torch import Tensor, nn

from boxwright.core.errors import UsageError
from boxwright.core.types import Precision
from boxwright.runtimes.artifact import open_graph, write_artifact
from boxwright.runtimes.base import Choice
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.parity import distance
from boxwright.runtimes.rounding import correct_biases, find_last_layers
from boxwright.runtimes.sensitivity import rank_layers
from boxwright.runtimes.source import Source

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_the_last_layers_are_those_whose_outputs_are_only_moved() -> None:
    names = find_last_layers(tiny_detector(), [torch.zeros(1, 3, 64, 96)])
    assert sorted(names) == sorted(f"head.{kind}_preds.{i}" for kind in ("cls", "reg", "obj") for i in range(3))


class Ends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scaled, self.changed, self.plain, self.twice = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> list[Tensor]:
        changed = self.changed(x)
        changed.add_(1)
        twice = self.twice(x)
        return [self.scaled(x) * 2, changed, torch.cat((self.plain(x), x)).T, self.plain(twice)]


def test_values_that_are_computed_with_are_nobodys_outputs() -> None:
    assert find_last_layers(Ends(), [torch.zeros(2, 4)]) == ["plain"]


def test_outputs_of_the_last_layer_are_finer_than_bf16(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.SiLU(), nn.Conv2d(8, 4, 1)).eval()
    source = Source.of(net, (torch.randn(1, 3, 8, 8),))
    for runtime in ("eager", "jit", "openvino"):
        choice = Choice(runtime=runtime, precision=Precision.BF16)
        artifact = write_artifact(source, choice, tmp_path / runtime)
        assert artifact.recipe["float32"] == ["2"]
        (output,) = open_graph(tmp_path / runtime).run([np.ones((1, 3, 8, 8), np.float32)])
        tensor = torch.from_numpy(output)
        assert (tensor != tensor.bfloat16().float()).any()


def test_corrected_biases_take_the_mean_error_away() -> None:
    torch.manual_seed(0)
    layer, x = nn.Conv2d(16, 8, 1, bias=False), torch.rand(4, 16, 8, 8) + 1
    with torch.no_grad():
        expected = layer(x)
        rounded = nn.functional.conv2d(x, layer.weight.bfloat16().float())
        assert correct_biases(layer, [x], torch.bfloat16) == 1
        corrected = rounded + layer.bias[:, None, None]
    before, after = ((found - expected).mean((0, 2, 3)).abs().max() for found in (rounded, corrected))
    assert before > 1e-4
    assert after < before / 50


@pytest.mark.parametrize("runtime", ["eager", "jit"])
def test_a_layer_that_stays_in_float32_is_not_rounded(tmp_path: Path, runtime: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.SiLU(), nn.Linear(4, 4), nn.SiLU(), nn.Linear(4, 2))
    with torch.no_grad():
        net[0].weight[:] = torch.tensor([1 + 2**-9, -1])  # in bf16 the two cancel each other out
    numbers = torch.arange(256.0)
    source = Source.of(net, (torch.stack((numbers, numbers), dim=1),))
    samples = [tuple(t.numpy() for t in source.example)]
    ranked = [name for name, _ in rank_layers(source, samples, Precision.BF16)]
    assert ranked[0] == "0"
    assert sorted(ranked) == ["0", "2", "4"]
    choice = Choice(runtime=runtime, precision=Precision.BF16)
    distances = []
    for kept in ((), ("0",)):
        folder = tmp_path / str(len(kept))
        calibration = Calibration(samples=samples, keep_float=kept) if kept else None
        artifact = write_artifact(source, choice, folder, calibration=calibration)
        assert artifact.recipe["float32"] == ["4", *kept]
        distances.append(distance(open_graph(folder).run(samples[0]), source.run(samples[0])))
    assert distances[0] > 20 * distances[1]


def test_a_layer_that_is_not_there_can_not_stay_in_float32(tmp_path: Path) -> None:
    source = Source.of(tiny_detector(), (torch.rand(1, 3, 64, 96),))
    calibration = Calibration(samples=[tuple(t.numpy() for t in source.example)], keep_float=("head.stem.0.conv",))
    with pytest.raises(UsageError, match=r"Did you mean 'head.stems.0.conv'"):
        write_artifact(source, Choice(runtime="eager", precision=Precision.BF16), tmp_path, calibration=calibration)
