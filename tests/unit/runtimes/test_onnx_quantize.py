import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from boxwright.core.errors import UsageError
from boxwright.core.types import Precision
from boxwright.runtimes import onnx_quantize
from boxwright.runtimes.artifact import open_graph, write_artifact
from boxwright.runtimes.base import Choice
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.onnx_export import export_onnx
from boxwright.runtimes.onnx_quantize import channel_grids, quantize_dynamic, quantize_static
from boxwright.runtimes.onnxruntime_ import OnnxGraph, optimise_file
from boxwright.runtimes.parity import distance
from boxwright.runtimes.source import Source

pytestmark = pytest.mark.usefixtures("one_torch_thread")


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, size: int = 3, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.silu(self.conv(x))


class Network(nn.Module):
    """A stem, a depthwise block with a way round it, and two outputs, one of them through matrices."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = Block(3, 16)
        self.depth = Block(16, 16, groups=16)
        self.point = Block(16, 16, 1)
        self.conv = Block(16, 24)
        self.relu = nn.Sequential(nn.Conv2d(24, 24, 3, padding=1), nn.ReLU())
        self.out = nn.Conv2d(24, 5, 1)
        self.hidden = nn.Linear(24, 32)
        self.score = nn.Linear(32, 4)
        with torch.no_grad():  # channels of very different size, as trained networks have them
            self.conv.conv.weight *= torch.logspace(-1, 1, 24).view(-1, 1, 1, 1)
        self.eval()

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        x = self.stem(images / 64)
        x = self.relu(self.conv(x + self.point(self.depth(x))))
        return {"map": self.out(x).flatten(2), "score": self.score(self.hidden(x.mean((2, 3))).relu())}


@pytest.fixture(scope="module")
def source() -> Source:
    return Source.of(Network(), (torch.zeros(1, 3, 16, 16),))


@pytest.fixture(scope="module")
def fused(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported file with SiLU as one operator."""
    folder = tmp_path_factory.mktemp("export")
    export_onnx(source, folder / "exported.onnx")
    optimise_file(folder / "exported.onnx", folder / "fused.onnx", keep_activations=True)
    return folder / "fused.onnx"


def _samples(count: int, seed: int = 0) -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(seed)
    return [(rng.uniform(0, 255, (1, 3, 16, 16)).astype(np.float32),) for _ in range(count)]


@pytest.fixture
def calibration() -> Calibration:
    return Calibration(samples=_samples(8))


def _far(path: Path, source: Source) -> float:
    graph = OnnxGraph(path)
    return max(distance(graph.run(inputs), source.run(inputs)) for inputs in _samples(4, seed=9))


def _kinds(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def test_static_layers_become_whole_number_operators_and_stay_near(
    fused: Path, source: Source, calibration: Calibration, tmp_path: Path
) -> None:
    recipe = quantize_static(fused, tmp_path / "q.onnx", source, calibration)
    optimise_file(tmp_path / "q.onnx", tmp_path / "o.onnx")
    kinds = _kinds(tmp_path / "o.onnx")
    assert kinds["QLinearConv"] == 3
    assert kinds["Conv"] == 3
    assert recipe["quantized"] == ["point.conv", "conv.conv", "relu.0", "hidden"]
    assert recipe["samples"] == 8
    assert 0 < _far(tmp_path / "o.onnx", source) < 0.05
    onnx.checker.check_model(onnx.load(tmp_path / "q.onnx"))


def test_standard_operators_alone_are_quantised_as_well(
    source: Source, calibration: Calibration, tmp_path: Path
) -> None:
    export_onnx(source, tmp_path / "a.onnx")
    quantize_static(tmp_path / "a.onnx", tmp_path / "q.onnx", source, calibration)
    assert {o.domain for o in onnx.load(tmp_path / "q.onnx").opset_import} == {""}
    assert 0 < _far(tmp_path / "q.onnx", source) < 0.05


@pytest.mark.parametrize("measured", [True, False])
def test_dynamic_layers_become_whole_number_operators_and_stay_near(
    fused: Path, source: Source, calibration: Calibration, tmp_path: Path, measured: bool
) -> None:
    quantize_dynamic(fused, tmp_path / "q.onnx", source, calibration if measured else None)
    kinds = _kinds(tmp_path / "q.onnx")
    assert (kinds["ConvInteger"], kinds["MatMulInteger"], kinds["Clip"]) == (3, 1, 4 if measured else 0)
    assert 0 < _far(tmp_path / "q.onnx", source) < 0.05


@pytest.mark.parametrize("quantize", [quantize_static, quantize_dynamic])
@pytest.mark.parametrize("keep", [("conv",), ("conv.conv",)])
def test_a_layer_is_kept_in_float_by_its_torch_name(
    fused: Path, source: Source, calibration: Calibration, tmp_path: Path, quantize: Any, keep: tuple[str, ...]
) -> None:
    recipe = quantize(fused, tmp_path / "q.onnx", source, replace(calibration, keep_float=keep))
    assert recipe["quantized"] == ["point.conv", "relu.0", "hidden"]
    assert recipe["keep_float"] == list(keep)
    assert "conv.conv/Conv" in [n.name for n in onnx.load(tmp_path / "q.onnx").graph.node]


def test_a_layer_that_is_not_there_can_not_be_kept(
    fused: Path, source: Source, calibration: Calibration, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"'point.con'.* Did you mean 'point.conv'"):
        quantize_static(fused, tmp_path / "q.onnx", source, replace(calibration, keep_float=("point.con",)))


def test_every_channel_fills_the_eight_bits(
    calibration: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    middle, last = Block(8, 16), nn.Conv2d(16, 16, 1, groups=16)
    with torch.no_grad():  # channels of very different size, all of them needed
        sizes = torch.logspace(-1, 1, 16).view(-1, 1, 1, 1)
        middle.conv.weight *= sizes
        last.weight /= sizes
    source = Source.of(nn.Sequential(Block(3, 8), middle, last).eval(), (torch.zeros(1, 3, 16, 16),))
    export_onnx(source, tmp_path / "a.onnx")
    quantize_static(tmp_path / "a.onnx", tmp_path / "q.onnx", source, calibration)
    apart = _far(tmp_path / "q.onnx", source)

    def one_for_all(lows: Any, highs: Any) -> tuple[Any, int]:
        scales, zero = channel_grids(lows, highs)
        return np.full_like(scales, scales.max()), zero

    monkeypatch.setattr(onnx_quantize, "channel_grids", one_for_all)
    quantize_static(tmp_path / "a.onnx", tmp_path / "q.onnx", source, calibration)
    assert apart < 0.5 * _far(tmp_path / "q.onnx", source)


def test_weights_have_seven_bits_where_sums_would_overflow(
    fused: Path, source: Source, calibration: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bits, isa in ((7, frozenset({"avx2"})), (8, frozenset({"avx2", "vnni"}))):
        cpu = replace(onnx_quantize.read_cpu(), isa=isa)
        monkeypatch.setattr(onnx_quantize, "read_cpu", lambda cpu=cpu: cpu)
        recipe = quantize_static(fused, tmp_path / "q.onnx", source, calibration)
        assert recipe["weights"].startswith(f"{bits} bits")
        weights = [t for t in onnx.load(tmp_path / "q.onnx").graph.initializer if t.name.endswith("/weight")]
        top = max(int(np.abs(onnx.numpy_helper.to_array(t).astype(int)).max()) for t in weights)
        assert top == 2 ** (bits - 1) - 1


@pytest.mark.parametrize("mode", ["qlinear", "integer"])
def test_an_artifact_holds_the_recipe_and_follows_the_batch(
    source: Source, calibration: Calibration, tmp_path: Path, mode: str
) -> None:
    choice = Choice(runtime="onnxruntime", precision=Precision.INT8, mode=mode)
    artifact = write_artifact(source, choice, tmp_path / "a", calibration=calibration, golden=_samples(1, seed=5)[0])
    assert artifact.distance is not None
    assert 0 < artifact.distance < 0.05
    assert len(artifact.recipe["quantized"]) == 4
    assert [p.name for p in (tmp_path / "a").glob("*.onnx")] == ["model.onnx"]
    shutil.move(tmp_path / "a", tmp_path / "b")
    graph = open_graph(tmp_path / "b")
    images = np.concatenate([s[0] for s in _samples(3, seed=7)])
    assert distance(graph.run([images]), source.run([images])) < 0.05


def test_channel_grids_cover_every_channel_with_one_zero() -> None:
    rng = np.random.default_rng(0)
    for lows, highs in (
        (-rng.uniform(0, 8, 20), rng.uniform(0, 50, 20)),
        (np.zeros(3), np.array([1.0, 2.0, 3.0])),
        (np.array([-3.0, -1.0]), np.zeros(2)),
        (np.zeros(2), np.zeros(2)),
    ):
        scales, zero = channel_grids(lows, highs)
        assert 0 <= zero <= 255
        assert (-zero * scales <= lows + 1e-9).all()
        assert ((255 - zero) * scales >= highs - 1e-9).all()
