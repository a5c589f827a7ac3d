"""Static int8: ranges, what stays in float, the kernels, the order of the layers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.models import two_inputs
from torch import Tensor, nn

from boxwright.core.errors import ConversionError, UsageError
from boxwright.core.signature import Array
from boxwright.core.types import Precision
from boxwright.runtimes.artifact import open_graph, write_artifact
from boxwright.runtimes.base import Choice, Tuning
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.eager import Int8Runtime
from boxwright.runtimes.onednn import Int8Layer, lower_to_onednn
from boxwright.runtimes.parity import distance
from boxwright.runtimes.program import load_program
from boxwright.runtimes.quantized import QuantizedLayer, Range, measure_layers, quantize
from boxwright.runtimes.sensitivity import rank_layers
from boxwright.runtimes.source import Source

pytestmark = pytest.mark.usefixtures("one_torch_thread")
INT8 = Choice(runtime="int8", precision=Precision.INT8)


class Mixed(nn.Module):
    """Every kind of layer: plain, grouped and depthwise convolutions, linear ones on three axes, views, branches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 3, 1)
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.second = nn.Conv2d(8, 8, 1, bias=False)
        self.third = nn.Conv2d(8, 8, 1, groups=2)
        self.unused = nn.Conv2d(8, 8, 1)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch = x.shape[0]
        x = nn.functional.silu(self.first(self.stem(x)))
        x = nn.functional.silu(self.third(torch.relu(self.second(x)))) + self.deep(x)
        rows = x.view(batch, 8, -1).transpose(1, 2)
        return self.last(rows) * 2, x


@pytest.fixture(scope="module")
def source() -> Source:
    torch.manual_seed(0)
    return Source.of(Mixed().eval(), (torch.randn(1, 3, 8, 8),))


def _samples(count: int, rows: int = 1, seed: int = 0) -> list[tuple[Array, ...]]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(rows, 3, 8, 8)).astype(np.float32),) for _ in range(count)]


@pytest.fixture(scope="module")
def folder(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("int8") / "art"
    write_artifact(source, INT8, folder, calibration=Calibration(samples=_samples(16)))
    return folder


def test_zero_is_a_step_of_every_range() -> None:
    for low, high in ((0.0, 5.0), (-1.0, 3.0), (-2.0, 0.0), (0.0, 0.0)):
        limits = Range(low, high)
        assert 0 <= limits.zero_point <= 255
        assert abs((0 - limits.zero_point) * limits.scale - low) <= limits.scale


def test_a_rounded_layer_is_within_half_a_step() -> None:
    layer = nn.Linear(1, 1)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(0.0)
    x = torch.linspace(-1, 2, 50)[:, None]
    found = QuantizedLayer(layer, Range(-1.0, 2.0))(x)
    assert (found - x).abs().max() <= 3 / 255 / 2 + 1e-6
    assert len(found.unique()) > 40


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("runtime", ["int8", "jit"])
def test_int8_kernels_give_nearly_the_models_outputs(
    source: Source, folder: Path, tmp_path: Path, rows: int, runtime: str
) -> None:
    if runtime == "jit":
        choice = Choice(runtime="jit", precision=Precision.INT8, channels_last=True)
        folder = tmp_path / "art"
        write_artifact(source, choice, folder, calibration=Calibration(samples=_samples(16)))
    ((images,),) = _samples(1, rows, seed=9)
    found = distance(open_graph(folder).run([images]), source.run([images]))
    assert 1e-3 < found < 0.08


def test_every_quantised_layer_runs_on_a_kernel(folder: Path) -> None:
    program = load_program(folder)
    assert lower_to_onednn(program) == 4
    layers = {name: part for name, part in program.named_children() if isinstance(part, Int8Layer)}
    # The activations are part of the kernels; `second` hands its steps to `third` without a float between them.
    assert [layer.activation for layer in layers.values()] == ["swish", "relu", "swish", "none"]
    assert [layer.dtype for layer in layers.values()] == [torch.float32, torch.uint8, torch.float32, torch.float32]
    targets = [str(node.target) for node in program.graph.nodes]
    assert not any("quantize" in target for target in targets)
    assert sum("conv2d" in target for target in targets) == 2  # the depthwise one, and the stem


def test_the_kernels_compute_what_the_rounded_layers_do(source: Source, folder: Path) -> None:
    module, _ = quantize(source, INT8, Calibration(samples=_samples(16)))
    ((images,),) = _samples(1, 2, seed=5)
    with torch.inference_mode():
        expected = [t.numpy() for t in module(torch.from_numpy(images))]
    # A value between two steps may fall to either side.
    assert distance(open_graph(folder).run([images]), expected) < 0.02


def test_the_recipe_names_what_was_done(source: Source) -> None:
    _, recipe = quantize(source, INT8, Calibration(samples=_samples(2), keep_float=("second",)))
    assert recipe["quantized"] == ["first", "third", "last"]
    assert recipe["keep_float"] == ["second"]
    assert recipe["samples"] == 2


def test_the_last_and_then_the_first_layer_keep_their_precision_if_there_are_others() -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    three = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), net).eval()
    samples = [(np.ones((1, 6), np.float32),)]
    _, recipe = quantize(Source.of(three, (torch.ones(1, 6),)), INT8, Calibration(samples=samples))
    assert recipe["quantized"] == ["2.0"]
    _, recipe = quantize(Source.of(net, (torch.ones(1, 6),)), INT8, Calibration(samples=samples))
    assert recipe["quantized"] == ["0"]
    _, recipe = quantize(Source.of(net[2:], (torch.ones(1, 6),)), INT8, Calibration(samples=samples))
    assert recipe["quantized"] == ["2"]  # the only one


def test_a_layer_that_reads_scaled_inputs_is_a_first_one() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.Buffer(torch.ones(6))
            self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.second(self.first((x - self.mean) / 255).relu()).relu())

    samples = [(np.ones((1, 6), np.float32),)]
    _, recipe = quantize(Source.of(Scaled().eval(), (torch.ones(1, 6),)), INT8, Calibration(samples=samples))
    assert recipe["quantized"] == ["second"]


@pytest.mark.parametrize(("share", "cut"), [(1, True), (100_000, False)])
def test_a_rare_extreme_is_cut_off_and_a_common_one_is_not(share: int, cut: bool) -> None:
    x = np.concatenate([np.linspace(0, 10, 1_000_000, dtype=np.float32), np.full(share, 100, np.float32)])
    net = nn.Sequential(nn.Linear(1, 1)).eval()
    source = Source.of(net, (torch.ones(1, 1),))
    module = source.flat()
    (found,) = measure_layers(module, source, Calibration(samples=[(x[:, None],)])).values()
    assert (found.inputs.high < 50) == cut


def test_names_that_are_not_there_are_refused(source: Source) -> None:
    with pytest.raises(UsageError, match=r"'secnd'.*Did you mean 'second'"):
        quantize(source, INT8, Calibration(samples=_samples(1), keep_float=("secnd",)))
    with pytest.raises(UsageError, match="needs calibration inputs"):
        Int8Runtime().convert(source, INT8, Path(), None)


def test_a_model_without_such_layers_is_refused() -> None:
    source = Source.of(nn.ReLU(), (torch.zeros(1, 3),))
    with pytest.raises(ConversionError, match="no layer that int8 is for"):
        quantize(source, INT8, Calibration(samples=[(np.zeros((1, 3), np.float32),)]))


def test_statistics_are_measured_once_for_a_model_and_its_samples(source: Source, tmp_path: Path) -> None:
    calibration = Calibration(samples=_samples(2), cache=tmp_path / "cache")
    module, _ = quantize(source, INT8, calibration)
    (file,) = (tmp_path / "cache").iterdir()
    text = file.read_text()
    again, _ = quantize(source, INT8, calibration)
    for (name, have), want in zip(again.state_dict().items(), module.state_dict().values(), strict=True):
        assert torch.equal(have, want), name
    file.write_text(text.replace("0.", "1."))  # what is read shows in what is made
    changed, _ = quantize(source, INT8, calibration)
    assert any(
        not torch.equal(a, b) for a, b in zip(changed.state_dict().values(), again.state_dict().values(), strict=True)
    )
    quantize(source, INT8, Calibration(samples=_samples(3), cache=tmp_path / "cache"))
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_the_layer_with_one_large_weight_suffers_most() -> None:
    model = two_inputs()
    with torch.no_grad():
        model.vector.weight[:, 0] *= 1e3
        model.vector.weight[:, 1:] *= 1
    source = Source.of(
        model, (torch.randn(2, 3, 8, 8),), {"vector": torch.randn(2, 5) * torch.tensor([0, 1.0, 1, 1, 1])}
    )
    samples = [tuple(t.numpy() for t in source.example)]
    ranking = rank_layers(source, samples)
    assert ranking[0][0] == "vector"
    assert {name for name, _ in ranking} == {"vector", "conv", "again"}
    errors = [error for _, error in ranking]
    assert errors == sorted(errors, reverse=True)
    assert all(error > 0 for error in errors)


def test_ranking_leaves_the_model_as_it_was(source: Source) -> None:
    before = source.run(_samples(1)[0])
    names = [name for name, _ in rank_layers(source, _samples(2))]
    assert sorted(names) == ["deep", "first", "last", "second", "stem", "third"]
    for have, want in zip(source.run(_samples(1)[0]), before, strict=True):
        np.testing.assert_array_equal(have, want)


def test_threads_are_put_back(folder: Path) -> None:
    before = torch.get_num_threads()
    open_graph(folder, Tuning(threads=before + 1)).run(list(_samples(1)[0]))
    assert torch.get_num_threads() == before
