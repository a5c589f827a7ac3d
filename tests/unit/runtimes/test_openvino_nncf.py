import os
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from boxwright.core.errors import UsageError
from boxwright.core.types import Precision
from boxwright.runtimes.artifact import open_graph, write_artifact
from boxwright.runtimes.base import Choice
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.source import Source

quantizer = pytest.importorskip("boxwright.runtimes.openvino_nncf")
pytestmark = pytest.mark.usefixtures("one_torch_thread")
INT8 = Choice(runtime="openvino", precision=Precision.INT8, mode="nncf")


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return x * (x - 1).tanh()  # a product that is no SiLU


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(3), Block(16)
        self.last = nn.Conv2d(16, 4, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.second(self.first(images))
        return self.last(x), x.mean(dim=(2, 3))


@pytest.fixture(scope="module")
def source() -> Source:
    torch.manual_seed(0)
    return Source.of(Net().eval(), (_images(1),))


@pytest.fixture(scope="module")
def model(source: Source) -> object:
    """The OpenVINO model; tests must not change it."""
    from boxwright.runtimes.openvino_convert import convert

    return convert(source)[0]


def _images(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(1, 3, 24, 24)).astype(np.float32)


def _calibration(**changes: object) -> Calibration:
    return Calibration(samples=[(_images(seed),) for seed in range(4)], **changes)  # type: ignore[arg-type]


def _kinds(folder: Path, product: str = "Multiply") -> list[str]:
    """Return what feeds the products of the saved model."""
    read = quantizer.openvino.Core().read_model(folder / "model.xml")
    products = [op for op in read.get_ops() if op.get_type_name() == product and "Convert" not in _feeds(op)]
    return [kind for op in products for kind in _feeds(op)]


def _feeds(op: object) -> list[str]:
    return [i.get_source_output().get_node().get_type_name() for i in op.inputs()]  # type: ignore[attr-defined]


def _weights(folder: Path) -> dict[str, str]:
    """Return for each convolution the element type of its stored weights, by the module in its name."""
    read = quantizer.openvino.Core().read_model(folder / "model.xml")
    found = {}
    for op in read.get_ops():
        if op.get_type_name() == "Convolution":
            node = op.input(1).get_source_output().get_node()
            while node.get_type_name() != "Constant":
                node = node.input(0).get_source_output().get_node()
            path = op.get_friendly_name().split("/")[0]
            found[path.removeprefix("__module.model.")] = str(node.get_element_type())
    return found


def test_int8_stores_small_weights_and_stays_close(source: Source, tmp_path: Path) -> None:
    artifact = write_artifact(source, INT8, tmp_path / "a", calibration=_calibration())
    assert artifact.distance is not None
    assert 0 < artifact.distance < 0.1
    assert artifact.recipe["samples"] == 4
    assert artifact.recipe["weights"] == "i8"
    assert set(_weights(tmp_path / "a").values()) == {"<Type: 'int8_t'>"}
    batch = np.concatenate([_images(1), _images(2), _images(3)])
    assert [o.shape[0] for o in open_graph(tmp_path / "a").run([batch])] == [3, 3]


def test_biases_are_corrected_where_nncf_can(source: Source, tmp_path: Path) -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)

        def forward(self, images: Tensor) -> Tensor:
            return self.last(self.first(images).relu())

    plain = Source.of(Plain().eval(), (_images(1),))
    artifact = write_artifact(plain, INT8, tmp_path / "plain", calibration=_calibration())
    assert artifact.recipe["bias_correction"] == "fast"
    # The 1 that is taken away after each layer of `Net` looks like a bias to NNCF, which then fails.
    artifact = write_artifact(source, INT8, tmp_path / "odd", calibration=_calibration())
    assert artifact.recipe["bias_correction"].startswith("none, it failed: ")


@pytest.mark.parametrize("keep", [True, False])
def test_products_stay_in_float_when_asked(source: Source, tmp_path: Path, keep: bool) -> None:
    write_artifact(source, INT8, tmp_path / "a", calibration=_calibration(keep_products=keep))
    assert ("FakeQuantize" in _kinds(tmp_path / "a")) != keep


@pytest.mark.parametrize(
    ("keep", "floats"),
    [
        (("last",), {"last"}),
        (("first.conv",), {"first.conv"}),
        (("first", "second.conv"), {"first.conv", "second.conv"}),
    ],
)
def test_named_modules_stay_in_float(source: Source, tmp_path: Path, keep: tuple[str, ...], floats: set[str]) -> None:
    artifact = write_artifact(source, INT8, tmp_path / "a", calibration=_calibration(keep_float=keep))
    types = _weights(tmp_path / "a")
    assert {name for name, kind in types.items() if "float" in kind} == floats
    assert artifact.recipe["keep_float"] == list(keep)


def test_a_module_that_does_not_exist_is_answered_with_the_nearest(source: Source, model: object) -> None:
    with pytest.raises(UsageError, match=r"keep_float='first.con' is no module .* Did you mean 'first.conv'"):
        quantizer.find_nodes(model, source, ["first.con"])


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
