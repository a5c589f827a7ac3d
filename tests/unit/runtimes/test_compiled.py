import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from boxwright.core.errors import CheckpointError, ConversionError
from boxwright.core.types import Precision
from boxwright.runtimes.artifact import open_graph, write_artifact
from boxwright.runtimes.base import Choice, Tuning
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.compiled import CompiledRuntime
from boxwright.runtimes.parity import distance
from boxwright.runtimes.source import Source

pytestmark = pytest.mark.usefixtures("one_torch_thread")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(nn.functional.silu(self.first(x))).flatten(2) * 2


def _source() -> Source:
    torch.manual_seed(0)
    return Source.of(Small().eval(), (torch.randn(1, 3, 8, 8),))


def _images(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 3, 8, 8)).astype(np.float32)


def test_int8_is_compiled_with_a_free_batch_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    before = dict(os.environ)
    source = _source()
    choice = Choice(runtime="compile", precision=Precision.INT8)
    calibration = Calibration(samples=[(_images(1, seed),) for seed in range(8)])
    artifact = write_artifact(source, choice, tmp_path / "art", calibration=calibration)
    assert artifact.recipe["quantized"] == ["second"]
    assert "batch" not in artifact.recipe
    assert list(artifact.files) == ["golden.npz", "model.pt2"]
    # Machine code for int8 convolutions, not a float imitation.
    assert b"qconv" in (tmp_path / "art" / "model.pt2").read_bytes()
    graph = open_graph(tmp_path / "art")
    for rows in (1, 3):
        assert 1e-4 < distance(graph.run([_images(rows)]), source.run([_images(rows)])) < 0.1
    graph.close()
    assert dict(os.environ) == before
    assert not list((tmp_path / "tmp").iterdir())


def test_without_a_compiler_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConversionError, match=r"needs a C\+\+ compiler"):
        CompiledRuntime().convert(_source(), Choice(runtime="compile"), tmp_path, None)


def test_broken_and_missing_packages_are_refused(tmp_path: Path) -> None:
    signature, choice = _source().signature, Choice(runtime="compile")
    with pytest.raises(CheckpointError, match=r"model\.pt2' can't be loaded"):
        CompiledRuntime().load(tmp_path, choice, signature, Tuning())
    (tmp_path / "model.pt2").write_text("hello")
    with pytest.raises(CheckpointError, match=r"model\.pt2' can't be loaded"):
        CompiledRuntime().load(tmp_path, choice, signature, Tuning())
