"""What a bf16 conversion does to a model beside rounding it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.models import tiny_detector
from torch import Tensor, nn

from boxwright.core.types import Precision
from boxwright.runtimes.artifact import open_graph, write_artifact
from boxwright.runtimes.base import Choice
from boxwright.runtimes.ends import find_last_layers
from boxwright.runtimes.rounding import correct_biases
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
    for runtime in ("eager", "jit"):
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
