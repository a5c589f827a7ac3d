import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from boxwright.core.errors import ConversionError, UsageError
from boxwright.core.types import Precision
from boxwright.runtimes.artifact import open_graph, write_artifact
from boxwright.runtimes.base import Choice
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.parity import distance
from boxwright.runtimes.source import Source

quantizer = pytest.importorskip("boxwright.runtimes.openvino_quantize")
openvino = pytest.importorskip("openvino")
pytestmark = pytest.mark.usefixtures("one_torch_thread")
INT8 = Choice(runtime="openvino", precision=Precision.INT8)
FREE = Choice(runtime="openvino", precision=Precision.INT8, mode="nncf")


class Block(nn.Module):
    def __init__(self, channels: int, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 16, 3, padding=1, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.silu(self.norm(self.conv(x)))


class Net(nn.Module):
    """A first and a last layer, a depthwise one, two that share their input, and a grouped one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = Block(3), Block(16), Block(16)
        self.deep, self.grouped = Block(16, groups=16), Block(16, groups=4)
        self.last = nn.Conv2d(16, 4, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(images)
        x = self.left(x) + self.right(x)
        x = self.grouped(self.deep(x))
        return self.last(x), x.mean(dim=(2, 3))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.fixture(scope="module")
def source() -> Source:
    torch.manual_seed(0)
    return Source.of(Net().eval(), (_images(1),))


def _images(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(1, 3, 24, 24)).astype(np.float32)


def _calibration(**changes: Any) -> Calibration:
    return Calibration(samples=[(_images(seed),) for seed in range(4)], **changes)


def _layers(folder: Path) -> dict[str, tuple[str, str]]:
    """Return what feeds each layer of the saved model: inputs, and the type of the stored weights."""
    found = {}
    for op in openvino.Core().read_model(folder / "model.xml").get_ops():
        if op.get_type_name() in ("Convolution", "GroupConvolution", "MatMul"):
            node = op.input_value(1).get_node()
            while node.get_type_name() != "Constant":
                node = node.input_value(0).get_node()
            name = op.get_friendly_name().split("/")[0].removeprefix("__module.model.")
            found[name] = (op.input_value(0).get_node().get_type_name(), str(node.get_element_type()))
    return found


def test_the_heavy_layers_are_quantised_and_the_others_are_not(source: Source, tmp_path: Path) -> None:
    artifact = write_artifact(source, INT8, tmp_path / "a", calibration=_calibration())
    layers = _layers(tmp_path / "a")
    quantized = {"left.conv", "right.conv", "grouped.conv"}
    assert {name for name, (fed, _) in layers.items() if fed == "FakeQuantize"} == quantized
    assert {name for name, (_, kind) in layers.items() if "int8" in kind or "i8" in kind} == quantized
    assert set(artifact.recipe["quantized"]) == quantized
    assert artifact.recipe["weights"] == "i8"
    assert artifact.distance is not None
    assert 0 < artifact.distance < 0.05


def test_every_batch_size_gives_about_the_models_outputs(source: Source, tmp_path: Path) -> None:
    write_artifact(source, INT8, tmp_path / "a", calibration=_calibration())
    batch = np.concatenate([_images(seed) for seed in (1, 2, 3)])
    assert distance(open_graph(tmp_path / "a").run([batch]), source.run([batch])) < 0.05


def test_a_sample_with_far_larger_values_is_not_cut_off(source: Source, tmp_path: Path) -> None:
    large = 40 * _images(9)
    samples = [*((_images(seed),) for seed in range(7)), (large,)]
    artifact = write_artifact(source, INT8, tmp_path / "a", calibration=Calibration(samples=samples))
    assert artifact.recipe["ranges"] == "histogram"
    assert distance(open_graph(tmp_path / "a").run([large]), source.run([large])) < 0.2


def test_layers_that_follow_each_other_without_a_bias_are_quantised(tmp_path: Path) -> None:
    torch.manual_seed(0)
    bare = nn.Sequential(
        *(nn.Conv2d(i, o, 3, padding=1, bias=False) for i, o in ((3, 8), (8, 8), (8, 8))), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, bias=False), nn.ReLU(), nn.Conv2d(8, 4, 1),
    ).eval()  # fmt: skip
    source = Source.of(bare, (_images(1),))
    artifact = write_artifact(source, INT8, tmp_path / "a", calibration=_calibration())
    assert set(artifact.recipe["quantized"]) == {"1", "2", "4"}
    assert distance(open_graph(tmp_path / "a").run([_images(2)]), source.run([_images(2)])) < 0.05


def test_the_mean_error_is_taken_out_of_the_bias(tmp_path: Path) -> None:
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)

        def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
            x = self.middle(self.first(images).relu())
            return x.relu(), self.last(x)

    torch.manual_seed(1)
    plain = Source.of(Biased().eval(), (_images(1),))
    write_artifact(plain, INT8, tmp_path / "a", calibration=_calibration())
    samples = np.concatenate([_images(seed) for seed in range(4)])
    ours, exact = open_graph(tmp_path / "a").run([samples])[1], plain.run([samples])[1]
    error = (ours - exact).mean(axis=(0, 2, 3))
    assert np.abs(error).max() < 0.1 * np.abs(ours - exact).mean()


def test_linear_layers_are_quantised_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rows = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)
    head = Source.of(Head().eval(), (rows,))
    artifact = write_artifact(head, INT8, tmp_path / "a", calibration=Calibration(samples=[(rows,)]))
    assert artifact.recipe["quantized"] == ["layers.2"]
    assert distance(open_graph(tmp_path / "a").run([rows]), head.run([rows])) < 0.05


def test_a_model_may_be_one_layer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rows = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)
    bare = Source.of(nn.Linear(12, 4).eval(), (rows,))
    artifact = write_artifact(bare, INT8, tmp_path / "a", calibration=Calibration(samples=[(rows,)]))
    assert artifact.recipe["quantized"] == ["model"]
    assert list(_layers(tmp_path / "a").values()) == [("FakeQuantize", "<Type: 'int8_t'>")]
    assert 0 < distance(open_graph(tmp_path / "a").run([rows]), bare.run([rows])) < 0.05


def test_the_rest_may_run_in_bf16(source: Source, tmp_path: Path) -> None:
    choice = Choice(runtime="openvino", precision=Precision.INT8, mode="bf16")
    artifact = write_artifact(source, choice, tmp_path / "a", calibration=_calibration())
    assert artifact.recipe["inference"] in ("bf16", "f32")
    assert artifact.distance is not None
    assert artifact.distance < 0.1


def test_named_modules_stay_in_float(source: Source, tmp_path: Path) -> None:
    calibration = _calibration(keep_float=("left", "grouped.conv"))
    artifact = write_artifact(source, INT8, tmp_path / "a", calibration=calibration)
    assert artifact.recipe["quantized"] == ["right.conv"]
    assert artifact.recipe["keep_float"] == ["left", "grouped.conv"]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"keep_float": ("left.con",)}, UsageError, r"'left.con'.*Did you mean 'left.conv'"),
        (
            {"keep_float": ("first", "left", "right", "deep", "grouped", "last")},
            ConversionError,
            "no layer that int8 is for",
        ),
    ],
)
def test_what_is_not_possible_is_said(
    source: Source, tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        write_artifact(source, INT8, tmp_path / "a", calibration=_calibration(**changes))


class Products(nn.Module):
    """Layers whose outputs go into products and constants that are not their bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, bias=False), nn.Conv2d(16, 4, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.second(self.first(images).relu())
        x = x * (x - 1).tanh()
        return self.last(x), x.mean(dim=(2, 3))


@pytest.fixture(scope="module")
def products() -> Source:
    torch.manual_seed(0)
    return Source.of(Products().eval(), (_images(1),))


def test_nncf_chooses_more_layers(source: Source, tmp_path: Path) -> None:
    artifact = write_artifact(source, FREE, tmp_path / "a", calibration=_calibration())
    assert artifact.distance is not None
    assert 0 < artifact.distance < 0.1
    assert artifact.recipe["samples"] == 4
    assert artifact.recipe["bias_correction"] == "fast"
    assert {kind for _, kind in _layers(tmp_path / "a").values()} == {"<Type: 'int8_t'>"}


def test_products_stay_in_float_and_biases_are_corrected_where_nncf_can(products: Source, tmp_path: Path) -> None:
    # The 1 subtracted after the second layer looks like a bias to NNCF, which then fails.
    artifact = write_artifact(products, FREE, tmp_path / "a", calibration=_calibration())
    assert artifact.recipe["bias_correction"].startswith("none, it failed: ")
    ops = openvino.Core().read_model(tmp_path / "a" / "model.xml").get_ops()
    inputs = [[i.get_source_output().get_node().get_type_name() for i in op.inputs()] for op in ops]
    fed = [kinds for op, kinds in zip(ops, inputs, strict=True) if op.get_type_name() == "Multiply"]
    assert ["Convolution", "Tanh"] in [sorted(kinds) for kinds in fed]


@pytest.mark.parametrize(
    ("keep", "floats"), [(("last",), {"last"}), (("left", "right.conv"), {"left.conv", "right.conv"})]
)
def test_named_modules_stay_in_float_where_nncf_chooses(
    source: Source, tmp_path: Path, keep: tuple[str, ...], floats: set[str]
) -> None:
    artifact = write_artifact(source, FREE, tmp_path / "a", calibration=_calibration(keep_float=keep))
    assert {name for name, (_, kind) in _layers(tmp_path / "a").items() if "float" in kind} == floats
    assert artifact.recipe["keep_float"] == list(keep)


def test_a_module_that_does_not_exist_is_answered_with_the_nearest(source: Source, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'left.con'.* Did you mean 'left.conv'"):
        write_artifact(source, FREE, tmp_path / "a", calibration=_calibration(keep_float=("left.con",)))


def test_a_second_conversion_takes_the_quantised_model_from_the_cache(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    first = write_artifact(source, INT8, tmp_path / "a", calibration=_calibration(cache=cache))
    assert len(list(cache.glob("*.xml"))) == len(list(cache.glob("*.bin"))) == len(os.listdir(cache)) / 2 == 1

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("measured again")

    with monkeypatch.context() as patched:
        patched.setattr(quantizer.nncf, "quantize", refuse)
        second = write_artifact(source, INT8, tmp_path / "b", calibration=_calibration(cache=cache))
    assert second.recipe == first.recipe
    images = _images(9)
    for one, other in zip(*(open_graph(tmp_path / f).run([images]) for f in "ab"), strict=True):
        np.testing.assert_array_equal(one, other)
    write_artifact(source, INT8, tmp_path / "c", calibration=_calibration(cache=cache, keep_float=("last",)))
    assert len(list(cache.glob("*.xml"))) == 2


def test_nothing_is_printed(source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_artifact(source, INT8, tmp_path / "a", calibration=_calibration())
    assert capsys.readouterr() == ("", "")
