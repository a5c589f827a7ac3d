from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from boxwright.core.errors import ConversionError
from boxwright.detector.postprocess import anchor_grid
from boxwright.runtimes.onnx_export import OneOutput, export_onnx
from boxwright.runtimes.onnxruntime_ import OnnxGraph
from boxwright.runtimes.source import Source

pytestmark = pytest.mark.usefixtures("one_torch_thread")


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(outputs)
        nn.init.uniform_(self.bn.running_var, 0.5, 2)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.silu(self.bn(self.conv(x)))


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(3, 8), nn.Sequential(Block(8, 8, groups=8), Block(8, 4))).eval()


def test_nodes_bear_the_names_of_torch_modules_and_norms_are_folded(tmp_path: Path) -> None:
    export_onnx(Source.of(small(), (torch.zeros(1, 3, 8, 8),)), tmp_path / "a.onnx", metadata={"who": "me"})
    model = onnx.load(tmp_path / "a.onnx")
    names = [node.name for node in model.graph.node if node.op_type == "Conv"]
    assert names == ["0.conv/Conv", "1.0.conv/Conv", "1.1.conv/Conv"]
    assert not any(node.op_type == "BatchNormalization" for node in model.graph.node)
    assert [(p.key, p.value) for p in model.metadata_props] == [("who", "me")]


def test_the_file_tells_nothing_about_the_machine_that_wrote_it(tmp_path: Path) -> None:
    export_onnx(Source.of(small(), (torch.zeros(1, 3, 8, 8),)), tmp_path / "a.onnx")
    content = (tmp_path / "a.onnx").read_bytes()
    assert b".py" not in content
    assert str(Path.cwd()).encode() not in content


def test_batch_and_size_are_free_where_that_is_asked_for(tmp_path: Path) -> None:
    source = Source.of(small(), (torch.zeros(1, 3, 64, 64),))
    export_onnx(source, tmp_path / "free.onnx", size_step=32)
    graph = OnnxGraph(tmp_path / "free.onnx")
    assert graph.signature.inputs[0].shape == (None, 3, None, None)
    for shape in ((1, 3, 64, 64), (3, 3, 32, 96), (2, 3, 128, 32)):
        images = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        np.testing.assert_allclose(graph.run([images])[0], source.run([images])[0], atol=1e-4)


def test_a_fixed_batch_stays_fixed(tmp_path: Path) -> None:
    export_onnx(Source.of(small(), (torch.zeros(2, 3, 8, 8),), free_batch=False), tmp_path / "two.onnx")
    assert OnnxGraph(tmp_path / "two.onnx").signature.inputs[0].shape == (2, 3, 8, 8)


def test_a_model_that_can_not_be_exported_is_told_in_one_sentence(tmp_path: Path) -> None:
    class Choosing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if float(x.sum()) > 0 else x

    with pytest.raises(ConversionError, match="could not be exported to ONNX: ") as caught:
        export_onnx(Source.of(Choosing(), (torch.ones(2, 3),)), tmp_path / "a.onnx")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size_hw", [(64, 96), (96, 32)])
def test_decoded_outputs_are_what_postprocessing_makes_of_raw_ones(size_hw: tuple[int, int]) -> None:
    grid, step = anchor_grid(size_hw, (8, 16, 32))
    torch.manual_seed(0)
    raw = [torch.randn(2, len(grid), n) for n in (4, 1, 3)]

    class Fixed(nn.Module):
        def forward(self, images: Tensor) -> list[Tensor]:
            return raw

    images = torch.zeros(2, 3, *size_hw)
    boxes, *scores = (t.numpy() for t in raw)
    expected = np.concatenate((boxes[..., :2] + grid, np.exp(boxes[..., 2:])), axis=2) * step
    decoded = OneOutput(Fixed(), "decoded", (8, 16, 32))(images).numpy()
    np.testing.assert_allclose(decoded[..., :4], expected, rtol=1e-5)
    np.testing.assert_allclose(decoded[..., 4:], 1 / (1 + np.exp(-np.concatenate(scores, axis=2))), rtol=1e-5)
    np.testing.assert_array_equal(OneOutput(Fixed(), "raw", (8, 16, 32))(images).numpy(), np.concatenate(raw, axis=2))
