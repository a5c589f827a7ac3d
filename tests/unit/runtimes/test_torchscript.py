from pathlib import Path

import numpy as np
import pytest
import torch
from support.models import Branching, two_inputs
from torch import Tensor, nn

from boxwright.core.errors import CheckpointError, ConversionError, UsageError
from boxwright.core.signature import Array
from boxwright.core.types import Precision
from boxwright.runtimes.artifact import open_graph, write_artifact
from boxwright.runtimes.base import Choice, Tuning
from boxwright.runtimes.parity import distance
from boxwright.runtimes.source import Source
from boxwright.runtimes.torchscript import JitRuntime

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def _source() -> Source:
    return Source.of(two_inputs(), (torch.randn(2, 3, 8, 8),), {"vector": torch.randn(2, 5)})


def _inputs(rows: int) -> list[Array]:
    rng = np.random.default_rng(rows)
    return [rng.normal(size=(rows, 3, 8, 8)).astype(np.float32), rng.normal(size=(rows, 5)).astype(np.float32)]


@pytest.mark.parametrize(("precision", "bound"), [(Precision.FP32, 1e-5), (Precision.BF16, 2e-2)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_trace_gives_the_models_outputs(
    tmp_path: Path, precision: Precision, bound: float, channels_last: bool
) -> None:
    source, choice = _source(), Choice(runtime="jit", precision=precision, channels_last=channels_last)
    artifact = write_artifact(source, choice, tmp_path / "art")
    assert list(artifact.files) == ["golden.npz", "model.ts"]
    graph = open_graph(tmp_path / "art")
    for rows in (1, 3, 1):
        outputs, expected = graph.run(_inputs(rows)), source.run(_inputs(rows))
        assert [(a.dtype, a.shape) for a in outputs] == [(a.dtype, a.shape) for a in expected]
        assert distance([outputs[0], outputs[2]], [expected[0], expected[2]]) < bound


class Counting(nn.Module):
    """A trace takes the loop's length for a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([row * (i + 1) for i, row in enumerate(x)])


@pytest.mark.filterwarnings("error")
def test_a_branch_on_values_is_told(tmp_path: Path) -> None:
    source = Source.of(Branching(), (torch.ones(2, 4),))
    artifact = write_artifact(source, Choice(runtime="jit"), tmp_path / "art")
    assert artifact.recipe["note"].startswith("frozen as the example took it: the branch at models.py:")
    assert "note" not in write_artifact(_source(), Choice(runtime="jit"), tmp_path / "other").recipe


def test_a_trace_that_holds_for_one_batch_size_says_so(tmp_path: Path) -> None:
    source = Source.of(Counting(), (torch.randn(3, 4),))
    artifact = write_artifact(source, Choice(runtime="jit"), tmp_path / "art")
    assert artifact.recipe["batch"] == 3
    assert artifact.signature.inputs[0].shape == (3, 4)
    with pytest.raises(UsageError, match=r"takes the shape \(3, 4\)"):
        open_graph(tmp_path / "art").signature.check([np.zeros((2, 4), np.float32)])


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if torch.jit.is_tracing():
            raise RuntimeError("no tracing, please")
        return x


def test_a_model_that_fails_while_it_is_traced_is_a_conversion_error(tmp_path: Path) -> None:
    source = Source.of(Fails(), (torch.ones(2, 3),))
    with pytest.raises(ConversionError, match="no tracing, please"):
        write_artifact(source, Choice(runtime="jit"), tmp_path / "art")


def test_broken_and_missing_traces_are_refused(tmp_path: Path) -> None:
    signature, choice = _source().signature, Choice(runtime="jit")
    with pytest.raises(CheckpointError, match=r"model\.ts' can't be loaded"):
        JitRuntime().load(tmp_path, choice, signature, Tuning())
    (tmp_path / "model.ts").write_text("hello")
    with pytest.raises(CheckpointError, match=r"model\.ts' can't be loaded"):
        JitRuntime().load(tmp_path, choice, signature, Tuning())
