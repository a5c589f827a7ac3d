"""bf16 in OpenVINO with some layers in float32."""

from pathlib import Path

import pytest
import torch
from support.models import tiny_detector
from torch import nn

from boxwright.core.errors import UsageError
from boxwright.core.types import Precision
from boxwright.runtimes.artifact import open_graph, write_artifact
from boxwright.runtimes.base import Choice
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.source import Source

openvino_ = pytest.importorskip("boxwright.runtimes.openvino_")
mixed = pytest.importorskip("boxwright.runtimes.openvino_mixed")

pytestmark = pytest.mark.usefixtures("one_torch_thread")

BF16 = Choice(runtime="openvino", precision=Precision.BF16)
LAST = {f"head.{kind}_preds.{i}" for kind in ("cls", "reg", "obj") for i in range(3)}
STEM = "stem.0.conv"

needs_bf16 = pytest.mark.skipif(
    "BF16" not in openvino_.openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"),
    reason="this CPU does not compute in bf16",
)


@pytest.fixture(scope="module")
def source() -> Source:
    torch.manual_seed(0)
    return Source.of(tiny_detector(), (torch.rand(1, 3, 64, 96) * 255,))


@pytest.fixture
def small() -> Source:
    return Source.of(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval(), (torch.rand(1, 3, 8, 8),))


def calibration(source: Source, *keep_float: str) -> Calibration:
    return Calibration(samples=[tuple(t.numpy() for t in source.example)], keep_float=keep_float)


def precisions(folder: Path) -> dict[str, str]:
    """Return what the convolutions of a written model compute in, by module."""
    core = openvino_.openvino.Core()
    compiled = core.compile_model(core.read_model(folder / "model.xml"), "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
    found = {}
    for node in compiled.get_runtime_model().get_ops():
        notes = node.get_rt_info()
        for name in notes["originalLayersNames"].astype(str).split(","):
            if notes["layerType"].astype(str) == "Convolution" and "convolution" in name:
                found[mixed.find_module(name).removeprefix("model.")] = notes["runtimePrecision"].astype(str)
    return found


@needs_bf16
def test_the_last_layers_and_those_asked_for_compute_in_float32_and_no_other(source: Source, tmp_path: Path) -> None:
    plain = write_artifact(source, BF16, tmp_path / "plain").recipe
    assert set(plain["float32"]) == LAST
    kept = write_artifact(source, BF16, tmp_path / "kept", calibration=calibration(source, STEM)).recipe
    assert set(kept["float32"]) == LAST | {STEM}
    for name, expected in (("plain", LAST), ("kept", LAST | {STEM})):
        found = precisions(tmp_path / name)
        assert {module for module, precision in found.items() if precision == "f32"} == expected
        assert len(found) > 2 * len(expected)


@needs_bf16
def test_int8_with_bf16_keeps_the_last_layers_in_float32_too(source: Source, tmp_path: Path) -> None:
    choice = Choice(runtime="openvino", precision=Precision.INT8, mode="bf16")
    recipe = write_artifact(source, choice, tmp_path / "a", calibration=calibration(source)).recipe
    assert set(recipe["float32"]) == LAST
    assert not LAST & set(recipe["quantized"])
    found = precisions(tmp_path / "a")
    assert {module for module, precision in found.items() if precision == "f32"} == LAST
    assert "u8" in found.values()


@needs_bf16
def test_an_openvino_that_reads_over_the_marks_is_noticed(
    small: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mixed.MARK, "name", "UnknownToThisVersion")
    recipe = write_artifact(small, BF16, tmp_path / "a").recipe
    assert "float32" not in recipe
    assert "UnknownToThisVersion" not in (tmp_path / "a" / "model.xml").read_text()
    open_graph(tmp_path / "a").run([t.numpy() for t in small.example])
    with pytest.raises(UsageError, match="can't keep '0' in float32"):
        write_artifact(small, BF16, tmp_path / "b", calibration=calibration(small, "0"))


def test_a_layer_that_is_not_there_is_refused_with_the_nearest(tmp_path: Path) -> None:
    source = Source.of(Twice().eval(), (torch.rand(1, 4, 8, 8),))
    with pytest.raises(UsageError, match=r"'firs'.*Did you mean 'first'"):
        write_artifact(source, BF16, tmp_path / "a", calibration=calibration(source, "firs"))


@needs_bf16
def test_a_model_that_is_one_layer(tmp_path: Path) -> None:
    source = Source.of(nn.Conv2d(3, 4, 1).eval(), (torch.rand(1, 3, 8, 8),))
    assert write_artifact(source, BF16, tmp_path / "a").recipe["float32"] == ["model"]
    assert precisions(tmp_path / "a") == {"model": "f32"}


@needs_bf16
def test_convolutions_can_be_kept_and_linear_layers_can_not(tmp_path: Path) -> None:
    head = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Flatten(), nn.Linear(288, 16), nn.Linear(16, 2))
    source = Source.of(nn.Sequential(nn.Conv2d(3, 8, 3), head).eval(), (torch.rand(1, 3, 8, 8),))
    recipe = write_artifact(source, BF16, tmp_path / "a").recipe
    assert (recipe["float32"], recipe["keepable"]) == ([], ["0", "1.0"])  # the last layer is no convolution
    assert "DisablePrecisionConversion" not in (tmp_path / "a" / "model.xml").read_text()
    assert write_artifact(source, BF16, tmp_path / "b", calibration=calibration(source, "0")).recipe["float32"] == ["0"]
    assert precisions(tmp_path / "b") == {"0": "f32", "1.0": "bf16"}
    with pytest.raises(UsageError, match=r"'1\.2', '1\.3' in float32 .*only conv"):
        write_artifact(source, BF16, tmp_path / "c", calibration=calibration(source, "1"))
    assert not list((tmp_path / "c").iterdir())  # the next call finds it empty
    choice = Choice(runtime="openvino", precision=Precision.INT8, mode="bf16")
    recipe = write_artifact(source, choice, tmp_path / "c", calibration=calibration(source, "1")).recipe
    assert recipe["float32"] == ["1.0"]


class Twice(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4, 1)
        self.other = nn.Sequential(self.first, nn.ReLU(), nn.Conv2d(4, 4, 1))
        self.last = nn.Sequential(nn.Conv2d(4, 2, 1), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.other(self.first(x).relu()))


@needs_bf16
@pytest.mark.parametrize("name", ["first", "other.0"])
def test_a_layer_with_two_names_is_found_by_each(tmp_path: Path, name: str) -> None:
    source = Source.of(Twice().eval(), (torch.rand(1, 4, 8, 8),))
    recipe = write_artifact(source, BF16, tmp_path / "a", calibration=calibration(source, name)).recipe
    assert recipe["float32"] == ["first"]
    assert sorted(recipe["keepable"]) == ["first", "last.0", "other.2"]
    assert sorted(precisions(tmp_path / "a").values()) in (["bf16", "bf16", "f32"], ["bf16", "bf16", "f32", "f32"])
